"""Where archives are received and opened: on threads, so that the loop goes on."""

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
    """Where archives are received and opened.

    Attributes:
        store: the cache, which holds them while they are needed.
        executor: for blocking calls on files.
        limits: how large they may be.
    """

    store: Store
    executor: Executor
    limits: Limits

    async def open(self, open_it: Callable[[Callable[[], bool]], Archive]) -> Archive:
        """Opens an archive on a thread; ``open_it`` is given what tells it to give up."""
        stopped = threading.Event()
        return await in_thread(
            self.executor, open_it, stopped.is_set, abort=stopped.set, dispose=lambda archive: archive.close()
        )

    async def receive(self, name: str, pieces: AsyncIterator[bytes]) -> Archive:
        """Receives an archive, and opens it."""
        from fastpull.sources.archive import archive_of  # noqa: PLC0415  # a registry's images need no archives
        from fastpull.sources.spool import Spool  # noqa: PLC0415

        spool = await in_thread(self.executor, Spool, name, self.store, self.limits, dispose=Spool.close)
        try:
            async for piece in pieces:
                await in_thread(self.executor, spool.write, piece)
            return await self.open(lambda is_stopped: archive_of(name, spool, is_stopped))
        finally:
            spool.close()
