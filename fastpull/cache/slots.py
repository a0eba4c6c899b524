"""A limit that all processes share which share a cache."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpull.cache.locks import FileLock

_POLL_SECONDS = 0.05


class Slots:
    """So many places, each a lock file: held by one task of one process on one node, and free when it dies.

    Args:
        lock: makes the lock of a place, by its number.
        count: of places.
    """

    def __init__(self, lock: Callable[[int], FileLock], count: int) -> None:
        self._lock = lock
        self._count = count

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Holds a place for as long as the context lasts. Raises CacheError."""
        lock = await self._acquire()
        try:
            yield
        finally:
            lock.release()

    async def _acquire(self) -> FileLock:
        locks = [self._lock(number) for number in range(self._count)]
        while True:
            first = random.randrange(self._count)  # noqa: S311  # spreads processes, keeps no secret
            for lock in (*locks[first:], *locks[:first]):
                if lock.try_acquire():
                    return lock
            await asyncio.sleep(random.uniform(0.5, 1.5) * _POLL_SECONDS)  # noqa: S311
