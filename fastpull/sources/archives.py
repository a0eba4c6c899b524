"""The open archives of a client. Each is indexed and decompressed once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpull.sources.archive import Archive

_MAX_IDLE = 4  # an archive is idle between the resolution of its image and the opening of the blobs


@dataclass(eq=False, slots=True)
class _Held:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    archive: Archive | None = None
    users: int = 0


class Archives:
    """Open archives, by key. Unused archives stay open until others replace them."""

    def __init__(self) -> None:
        self._held: dict[Hashable, _Held] = {}

    @asynccontextmanager
    async def use(
        self, key: Hashable, open_it: Callable[[], Awaitable[Archive]], *, anew: bool = False
    ) -> AsyncIterator[Archive]:
        """Yield an archive for the duration of the context.

        Args:
            key: key of the archive.
            open_it: opens it; called once for concurrent users.
            anew: open it again even if it is open, because its origin may have changed.
        """
        if anew:
            self._drop(key)
        held = self._held.pop(key, None) or _Held()
        self._held[key] = held  # most recently used last
        held.users += 1
        try:
            async with held.lock:
                if held.archive is None:
                    held.archive = await open_it()
            yield held.archive
        finally:
            held.users -= 1
            if not held.users:
                if self._held.get(key) is not held:
                    _close(held)
                elif held.archive is None:
                    del self._held[key]
                self._trim()

    def close(self) -> None:
        """Close all archives. None may be in use."""
        for key in list(self._held):
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        held = self._held.pop(key, None)
        if held is not None and not held.users:
            _close(held)

    def _trim(self) -> None:
        idle = [key for key, held in self._held.items() if not held.users]
        for key in idle[: max(0, len(idle) - _MAX_IDLE)]:
            self._drop(key)


def _close(held: _Held) -> None:
    if held.archive is not None:
        held.archive.close()
        held.archive = None
