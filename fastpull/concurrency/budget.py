"""A number of bytes that many tasks share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ByteBudget:
    """A number of bytes that many tasks share. A task that requests more than is free waits; the queue is ordered.

    Args:
        total: size of the budget, in bytes. A request above the total is granted when nothing else is held.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __repr__(self) -> str:
        return f"<ByteBudget {self._free} of {self.total} bytes free, {len(self._queue)} waiting>"

    @asynccontextmanager
    async def hold(self, size: int) -> AsyncIterator[None]:
        """Hold `size` bytes while the context lasts."""
        size = min(size, self.total)
        await self._acquire(size)
        try:
            yield
        finally:
            self._release(size)

    def resize(self, total: int) -> None:
        """Change the total. Held bytes stay held; requests wait until the sum is within the new total."""
        change, self.total = total - self.total, total
        self._release(change)

    async def _acquire(self, size: int) -> None:
        if size <= self._free and not self._queue:
            self._free -= size
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((size, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._release(size)
            raise

    def _release(self, size: int) -> None:
        self._free += size
        while self._queue and (self._queue[0][1].done() or self._queue[0][0] <= self._free):
            size, granted = self._queue.popleft()
            if not granted.done():
                self._free -= size
                granted.set_result(None)
