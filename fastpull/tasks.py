"""Helpers around asyncio's own task groups and threads, and for the memory that those leave behind."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")

LAYER_COST = 4 << 20
"""What the buffers of one layer may take: compressed and uncompressed chunks, and a small window of the inflater."""


class Aborted(Exception):
    """Told to a thread that waits for something that will not come, because its pull has ended."""


def give_back_freed_memory() -> None:
    """Gives the kernel back what was freed, also by threads that have ended; does nothing where libc is not GNU's."""
    import ctypes  # noqa: PLC0415  # few need it

    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def check_stopped(is_stopped: Callable[[], bool]) -> None:
    """Raises Aborted where it is time to give up."""
    if is_stopped():
        raise Aborted


class TaskGroup(asyncio.TaskGroup):  # noqa: TID251
    """A task group that knows its tasks, made by `task_group`.

    Attributes:
        unfinished: the tasks that have not ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unfinished = set[asyncio.Task[Any]]()

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """See `asyncio.TaskGroup.create_task`."""
        task = super().create_task(coro, name=name, context=context)
        self.unfinished.add(task)
        task.add_done_callback(self.unfinished.discard)
        return task


@asynccontextmanager
async def task_group() -> AsyncIterator[TaskGroup]:
    """A task group whose failure is the first error that broke it, and not a group of one.

    A cancellation from outside goes before the errors of the group: a caller that handles those would go on as if it
    had not been cancelled.
    """
    task = asyncio.current_task()
    assert task is not None, "used outside of a task"
    before = task.cancelling()
    try:
        async with TaskGroup() as group:
            yield group
            # before Python 3.13 a group that fails while it is left counts its own cancellation as one from outside
            while group.unfinished:
                await asyncio.wait(group.unfinished)
    except BaseExceptionGroup as failures:
        if task.cancelling() > before:
            raise asyncio.CancelledError from failures
        raise _first(failures) from failures


@asynccontextmanager
async def repeating(seconds: float, function: Callable[[], None]) -> AsyncIterator[None]:
    """Call a function every so many seconds while the context lasts. Its exception ends the body, and is raised."""

    async def repeat() -> None:
        while True:
            await asyncio.sleep(seconds)
            function()

    async with task_group() as group:
        task = group.create_task(repeat())
        try:
            yield
        finally:
            task.cancel()


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def in_thread(
    executor: Executor | None,
    function: Callable[..., T],
    *args: object,
    abort: Callable[[], None] | None = None,
    dispose: Callable[[T], None] | None = None,
) -> T:
    """Runs a blocking function on a thread, and waits for its end even when cancelled, however often.

    A thread cannot be stopped: what it uses may only be closed after it has returned.

    Args:
        executor: whose thread; None for those of the event loop.
        function: to be called.
        *args: with these.
        abort: called on cancellation, to make the function return soon.
        dispose: given what the function returned, if a cancellation keeps it from the caller.
    """
    future = asyncio.get_running_loop().run_in_executor(executor, function, *args)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if abort is not None:
            abort()
        while not future.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({future})
        # the cancellation is what is raised, whatever came of the function
        if not future.cancelled() and future.exception() is None and dispose is not None:
            dispose(future.result())
        raise


class Strand:
    """Calls that are made one after the other, in order, on threads that others use as well.

    Args:
        executor: whose threads.
        depth: calls that may wait; who wants to add one more waits, too.
    """

    def __init__(self, executor: Executor, depth: int) -> None:
        self._executor = executor
        self._depth = depth
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._changed = threading.Condition()
        self._is_running = False
        self._error: BaseException | None = None

    def submit(self, function: Callable[..., object], *args: object) -> None:
        """Adds a call; blocks while too many wait.

        Raises:
            Exception: what an earlier call has raised; no later one is made.
        """
        with self._changed:
            while len(self._calls) >= self._depth:
                self._changed.wait()
            self._check()
            self._calls.append((function, args))
            if self._is_running:
                return
            self._is_running = True
        self._executor.submit(self._run)

    def finish(self) -> None:
        """Waits until all calls are made; raises what one of them has raised."""
        with self._changed:
            while self._is_running:
                self._changed.wait()
            self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._calls:
                    self._is_running = False
                    self._changed.notify_all()
                    return
                function, args = self._calls.popleft()
                self._changed.notify_all()
            try:
                function(*args)
            except BaseException as error:  # noqa: BLE001  # it is raised where somebody waits for it
                with self._changed:
                    self._error = error
                    self._calls.clear()


class Turns:
    """A semaphore whose queue is ordered, and whose size may change.

    Args:
        size: how many turns there are at once.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        self._queue: list[tuple[int, int, asyncio.Future[Turn]]] = []
        self._order = itertools.count()

    @property
    def all_used(self) -> bool:
        """Whether nobody can have a turn now."""
        return self._used >= self._size

    async def acquire(self, rank: int) -> Turn:
        """Waits for a turn; of those who wait the lowest ``rank`` goes first, of equals the first."""
        if not self.all_used and not self._queue:
            return self._begin()
        granted: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
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

    def _begin(self) -> Turn:
        self._used += 1
        return Turn(self)

    def _end(self) -> None:
        self._used -= 1
        self._grant()

    def _grant(self) -> None:
        while self._queue and not self.all_used:
            granted = heapq.heappop(self._queue)[2]
            if not granted.done():
                granted.set_result(self._begin())


class Turn:
    """One turn, to be released by whoever has it; a context manager that does so."""

    def __init__(self, turns: Turns) -> None:
        self._turns: Turns | None = turns

    def release(self) -> None:
        """Gives it back. May be called twice."""
        turns, self._turns = self._turns, None
        if turns is not None:
            turns._end()  # noqa: SLF001  # the two are one

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.release()


class Passage:
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


class Budget:
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
