"""Semaphores and starting order for asyncio tasks."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress


class PrioritySemaphore:
    """A semaphore whose queue is ordered, and whose size may change.

    Args:
        size: how many turns there are at once.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        self._queue: list[tuple[int, int, asyncio.Future[Permit]]] = []
        self._order = itertools.count()

    @property
    def all_used(self) -> bool:
        """Whether nobody can have a turn now."""
        return self._used >= self._size

    async def acquire(self, rank: int) -> Permit:
        """Waits for a turn; of those who wait the lowest ``rank`` goes first, of equals the first."""
        if not self.all_used and not self._queue:
            return self._begin()
        granted: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (rank, next(self._order), granted))
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                granted.result().release()  # it was granted at the moment of the cancellation
            raise

    def resize(self, size: int) -> None:
        """Changes how many turns there are; those that are taken stay so."""
        self._size = size
        self._grant()

    def _begin(self) -> Permit:
        self._used += 1
        return Permit(self)

    def _end(self) -> None:
        self._used -= 1
        self._grant()

    def _grant(self) -> None:
        while self._queue and not self.all_used:
            granted = heapq.heappop(self._queue)[2]
            if not granted.done():
                granted.set_result(self._begin())


class Permit:
    """One turn, to be released by whoever has it; a context manager that does so."""

    def __init__(self, turns: PrioritySemaphore) -> None:
        self._turns: PrioritySemaphore | None = turns

    def release(self) -> None:
        """Gives it back. May be called twice."""
        turns, self._turns = self._turns, None
        if turns is not None:
            turns._end()  # noqa: SLF001  # the two are one

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.release()


class OrderedStart:
    """A point that tasks pass in the order in which they came, except that none waits long for one that tarries.

    Args:
        patience: seconds that a task waits for the one before it.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._last = asyncio.Event()
        self._last.set()

    def come(self) -> Callable[[], Awaitable[None]]:
        """Takes the next place; what is returned is to be awaited at the point."""
        before, passed = self._last, asyncio.Event()
        self._last = passed

        async def go() -> None:
            if not before.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._patience):
                        await before.wait()
            passed.set()

        return go
