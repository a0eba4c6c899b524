"""Receiving and opening of archives on threads, off the event loop."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpull.concurrency.threads import in_thread

if TYPE_CHECKING:
    from fastpull.cache.store import Store
    from fastpull.config.limits import Limits
    from fastpull.sources.archive import Archive


@dataclass(frozen=True, slots=True)
class ArchiveOpener:
    """The resources for receiving and opening archives.

    Attributes:
        store: cache that holds them while they are in use.
        executor: threads for blocking calls on files.
        limits: limits of their size.
    """

    store: Store
    executor: Executor
    limits: Limits

    async def open(self, open_it: Callable[[Callable[[], bool]], Archive]) -> Archive:
        """Open an archive on a thread. ``open_it`` gets the function that tells it to abort."""
        stopped = threading.Event()
        return await in_thread(
            self.executor, open_it, stopped.is_set, abort=stopped.set, dispose=lambda archive: archive.close()
        )

    async def receive(self, name: str, pieces: AsyncIterator[bytes]) -> Archive:
        """Receive an archive into a spool, and open it."""
        from fastpull.sources.archive import archive_of  # noqa: PLC0415  # not needed for registries
        from fastpull.sources.spool import Spool  # noqa: PLC0415

        spool = await in_thread(self.executor, Spool, name, self.store, self.limits, dispose=Spool.close)
        try:
            async for piece in pieces:
                await in_thread(self.executor, spool.write, piece)
            return await self.open(lambda is_stopped: archive_of(name, spool, is_stopped))
        finally:
            spool.close()
