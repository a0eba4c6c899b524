"""A number of bytes that many tasks share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteBudget:
    """A number of bytes that many tasks share; who wants more than is left waits, in order.

    Args:
        total: in bytes. A single claim above what it is at that time is granted when nothing else is held.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Holds so many bytes for as long as the context lasts."""
        size = min(size, self.total)
        await self._acquire(size)
        try:
            yield
        finally:
            self._release(size)

    def resize(self, total: int) -> None:
        """Changes the total; what is held stays so, and less is granted until it is within the total again."""
        change, self.total = total - self.total, total
        self._release(change)

    async def _acquire(self, size: int) -> None:
        if size <= self._free and not self._queue:
            self._free -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release(size)
            raise

    def _release(self, size: int) -> None:
        self._free += size
        while self._queue and (self._queue[0][1].done() or self._queue[0][0] <= self._free):
            size, turn = self._queue.popleft()
            if not turn.done():
                self._free -= size
                turn.set_result(None)
