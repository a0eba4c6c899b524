"""Semaphores and starting order for asyncio tasks."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress


class PrioritySemaphore:
    """A semaphore with a queue ordered by rank, and with a size that may change.

    Args:
        size: number of permits.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        self._queue: list[tuple[int, int, asyncio.Future[Permit]]] = []
        self._order = itertools.count()

    @property
    def is_exhausted(self) -> bool:
        """Whether no permit is free."""
        return self._used >= self._size

    async def acquire(self, rank: int) -> Permit:
        """Wait for a permit. The lowest ``rank`` goes first; equal ranks go in order of arrival."""
        if not self.is_exhausted and not self._queue:
            return self._begin()
        granted: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (rank, next(self._order), granted))
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                granted.result().release()  # granted at the moment of the cancellation
            raise

    def resize(self, size: int) -> None:
        """Change the number of permits. Acquired permits stay valid."""
        self._size = size
        self._grant()

    def _begin(self) -> Permit:
        self._used += 1
        return Permit(self)

    def _end(self) -> None:
        self._used -= 1
        self._grant()

    def _grant(self) -> None:
        while self._queue and not self.is_exhausted:
            granted = heapq.heappop(self._queue)[2]
            if not granted.done():
                granted.set_result(self._begin())


class Permit:
    """A permit of a `PrioritySemaphore`; as a context manager it releases itself."""

    def __init__(self, semaphore: PrioritySemaphore) -> None:
        self._semaphore: PrioritySemaphore | None = semaphore

    def release(self) -> None:
        """Release the permit. May be called twice."""
        semaphore, self._semaphore = self._semaphore, None
        if semaphore is not None:
            semaphore._end()  # noqa: SLF001  # a permit is a part of its semaphore

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.release()


class OrderedStart:
    """A point that tasks pass in the order in which they entered; a slow task delays the next one only briefly.

    Args:
        patience: seconds that a task waits for the task before it.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._last = asyncio.Event()
        self._last.set()

    def enter(self) -> Callable[[], Awaitable[None]]:
        """Join the order; return a function whose result the task awaits at the point."""
        before, passed = self._last, asyncio.Event()
        self._last = passed

        async def go() -> None:
            if not before.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._patience):
                        await before.wait()
            passed.set()

        return go
