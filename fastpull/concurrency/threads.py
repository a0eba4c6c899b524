"""Task groups, and blocking functions on threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class Aborted(Exception):
    """Told to a thread that waits for something that will not come, because its pull has ended."""


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
