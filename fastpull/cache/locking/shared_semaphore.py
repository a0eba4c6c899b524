"""A semaphore shared by all processes of a cache."""

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
"""Time for which a permit without a waiting task is kept for the next range."""
_MAX_PASSING_SECONDS = 30.0
"""Time for which a process passes a permit among its own tasks before it releases the permit to other processes."""


class SharedSemaphore:
    """A fixed number of permits. Each is a lock file, held by one process on one node, and free after its death.

    Probing for a free permit costs a metadata server several requests. So one task probes for all tasks of this
    process, one permit at a time, with growing pauses. A permit is passed from task to task, from one range of a blob
    to the next, before it is released.

    Args:
        lock: returns the lock of a permit, by number.
        count: number of permits.
        executor: threads for blocking calls on the lock files.
    """

    def __init__(self, lock: Callable[[int], FileLock], count: int, executor: Executor) -> None:
        self._locks = [lock(number) for number in range(count)]
        self._executor = executor
        self._waiting: deque[asyncio.Future[_Permit]] = deque()
        self._idle: list[_Permit] = []
        self._probing: asyncio.Task[None] | None = None
        self._releasing = set[asyncio.Task[None]]()
        self._is_closed = False

    def __repr__(self) -> str:
        held = sum(lock.held for lock in self._locks)
        waiting = sum(not future.done() for future in self._waiting)
        permits = f"{held} of {len(self._locks)} permits held, {len(self._idle)} idle"
        return f"<SharedSemaphore: {permits}, {waiting} tasks waiting>"

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold a permit during the context. Raise CacheError."""
        permit = await self._acquire()
        try:
            yield
        finally:
            self._pass_on(permit)

    async def close(self) -> None:
        """Release all permits that no task holds."""
        self._is_closed = True
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        while self._idle:
            self._release(self._idle.pop())
        while self._releasing:
            await asyncio.wait(self._releasing)

    # --- among the tasks of this process

    async def _acquire(self) -> _Permit:
        if self._idle:
            permit = self._idle.pop()
            permit.cancel_return()
            return permit
        future: asyncio.Future[_Permit] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._probe_if_wanted()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._pass_on(future.result())  # granted at the moment of the cancellation
            raise

    def _pass_on(self, permit: _Permit) -> None:
        """Pass a permit to the next waiting task; without one, keep it for a moment."""
        if time.monotonic() - permit.since > _MAX_PASSING_SECONDS:
            self._release(permit)
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
            self._release(permit)

    # --- among processes

    def _release(self, permit: _Permit) -> None:
        permit.cancel_return()
        task = asyncio.create_task(in_thread(self._executor, permit.lock.release))
        self._releasing.add(task)
        task.add_done_callback(self._on_released)

    def _on_released(self, task: asyncio.Task[None]) -> None:
        self._releasing.discard(task)
        if not self._is_closed:
            self._probe_if_wanted()

    def _probe_if_wanted(self) -> None:
        is_wanted = any(not future.done() for future in self._waiting)
        if is_wanted and (self._probing is None or self._probing.done()):
            self._probing = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        """Probe for free permits while a task waits for one."""
        pauses = _pauses()
        for lock in self._free_locks():
            if not any(not future.done() for future in self._waiting):
                return
            try:
                is_acquired = await lock.try_acquire_async(self._executor)
            except Exception as error:  # noqa: BLE001  # raised in the waiting task
                if waiter := self._next():
                    waiter.set_exception(error)
                continue
            if is_acquired:
                self._pass_on(_Permit(lock))
                pauses = _pauses()
            else:
                await asyncio.sleep(next(pauses))

    def _free_locks(self) -> Iterator[FileLock]:
        """Iterate endlessly over the locks that this process does not hold, in random order in each round."""
        while True:
            for lock in random.sample(self._locks, len(self._locks)):
                if not lock.held:
                    yield lock
            if all(lock.held for lock in self._locks):
                return  # a task of this process will pass on its permit


class _Permit:
    """A lock held by this process: in use by a task, or idle for a moment."""

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
    """Yield pauses between two probes, in seconds, with full jitter."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311  # not for secrets
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
