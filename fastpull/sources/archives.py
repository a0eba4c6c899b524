"""The archives that a client has open: each is indexed, and decompressed, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpull.sources.archive import Archive

_MAX_IDLE = 4  # between the resolution of an image and the opening of its blobs nobody uses its archive


@dataclass(eq=False, slots=True)
class _Held:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    archive: Archive | None = None
    users: int = 0


class Archives:
    """Open archives, by what they were opened from. Those that nobody uses stay open until others take their place."""

    def __init__(self) -> None:
        self._held: dict[Hashable, _Held] = {}

    @asynccontextmanager
    async def use(
        self, key: Hashable, open_it: Callable[[], Awaitable[Archive]], *, anew: bool = False
    ) -> AsyncIterator[Archive]:
        """Gives an archive for as long as the context lasts.

        Args:
            key: of the archive.
            open_it: opens it; of several who want it at the same time one does that.
            anew: open it again, even if it is open: what it comes from may have changed.
        """
        if anew:
            self._drop(key)
        held = self._held.pop(key, None) or _Held()
        self._held[key] = held  # the last one used is the last in the order
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
        """Closes all; nobody uses any."""
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
