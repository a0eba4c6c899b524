"""A limit that all processes share which share a cache."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastpull.concurrency.threads import in_thread

if TYPE_CHECKING:
    from fastpull.cache.locking.file_lock import FileLock

_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
_IDLE_SECONDS = 1.0
"""How long a permit that no task of this process wants is kept for the next range."""
_TURN_SECONDS = 30.0
"""How long a process hands a permit on among its own tasks before others get a chance."""


class SharedSemaphore:
    """So many permits, each a lock file: held by one process on one node, and free when it dies.

    Looking for a free permit costs a metadata server several requests. So one task looks for all tasks of this process,
    at one permit at a time and after growing pauses; and a permit goes from task to task, from one range of a blob to
    the next, before it is given back.

    Args:
        lock: makes the lock of a permit, by its number.
        count: of permits.
        executor: for blocking calls on the lock files.
    """

    def __init__(self, lock: Callable[[int], FileLock], count: int, executor: Executor) -> None:
        self._locks = [lock(number) for number in range(count)]
        self._executor = executor
        self._waiting: deque[asyncio.Future[_Permit]] = deque()
        self._idle: list[_Permit] = []
        self._seeking: asyncio.Task[None] | None = None
        self._returning = set[asyncio.Task[None]]()
        self._is_closed = False

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Holds a permit for as long as the context lasts. Raises CacheError."""
        permit = await self._acquire()
        try:
            yield
        finally:
            self._pass_on(permit)

    async def close(self) -> None:
        """Give all permits back that no task holds."""
        self._is_closed = True
        if self._seeking is not None:
            self._seeking.cancel()
            await asyncio.gather(self._seeking, return_exceptions=True)
        while self._idle:
            self._give_back(self._idle.pop())
        while self._returning:
            await asyncio.wait(self._returning)

    # --- among the tasks of this process

    async def _acquire(self) -> _Permit:
        if self._idle:
            permit = self._idle.pop()
            permit.cancel_return()
            return permit
        future: asyncio.Future[_Permit] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._seek_if_wanted()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._pass_on(future.result())  # it was granted at the moment of the cancellation
            raise

    def _pass_on(self, permit: _Permit) -> None:
        """Give a permit to the next task; where none waits, keep it for a moment."""
        if time.monotonic() - permit.since > _TURN_SECONDS:
            self._give_back(permit)
            return
        if waiter := self._next():
            waiter.set_result(permit)
            return
        self._idle.append(permit)
        permit.returning = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._drop_idle, permit)

    def _next(self) -> asyncio.Future[_Permit] | None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                return future
        return None

    def _drop_idle(self, permit: _Permit) -> None:
        if permit in self._idle:
            self._idle.remove(permit)
            self._give_back(permit)

    # --- among processes

    def _give_back(self, permit: _Permit) -> None:
        permit.cancel_return()
        task = asyncio.create_task(in_thread(self._executor, permit.lock.release))
        self._returning.add(task)
        task.add_done_callback(self._returned)

    def _returned(self, task: asyncio.Task[None]) -> None:
        self._returning.discard(task)
        if not self._is_closed:
            self._seek_if_wanted()

    def _seek_if_wanted(self) -> None:
        is_wanted = any(not future.done() for future in self._waiting)
        if is_wanted and (self._seeking is None or self._seeking.done()):
            self._seeking = asyncio.create_task(self._seek())

    async def _seek(self) -> None:
        """Look for free permits as long as a task waits for one."""
        pauses = _pauses()
        for lock in self._in_turn():
            if not any(not future.done() for future in self._waiting):
                return
            try:
                is_ours = await lock.try_acquire_async(self._executor)
            except Exception as error:  # noqa: BLE001  # is raised in the task that waits
                if waiter := self._next():
                    waiter.set_exception(error)
                continue
            if is_ours:
                self._pass_on(_Permit(lock))
                pauses = _pauses()
            else:
                await asyncio.sleep(next(pauses))

    def _in_turn(self) -> Iterator[FileLock]:
        """All locks that this process does not hold, again and again, each round in another order."""
        while True:
            for lock in random.sample(self._locks, len(self._locks)):
                if not lock.held:
                    yield lock
            if all(lock.held for lock in self._locks):
                return  # a task of this process passes its permit on


class _Permit:
    """A lock that this process holds, for one of its tasks or, for a moment, for none."""

    def __init__(self, lock: FileLock) -> None:
        self.lock = lock
        self.since = time.monotonic()
        self.returning: asyncio.TimerHandle | None = None

    def cancel_return(self) -> None:
        """Keep the permit."""
        if self.returning is not None:
            self.returning.cancel()
            self.returning = None


def _pauses() -> Iterator[float]:
    """Return how long to wait between two looks, in seconds, with full jitter."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311  # not for secrets
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
