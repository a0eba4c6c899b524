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
    """The pull of a blocked thread has ended, so that the thread must stop waiting."""


def check_stopped(is_stopped: Callable[[], bool]) -> None:
    """Raise Aborted if the work was stopped."""
    if is_stopped():
        raise Aborted


class TaskGroup(asyncio.TaskGroup):  # noqa: TID251
    """A task group that records its tasks; made by `task_group`.

    Attributes:
        unfinished: tasks that have not ended.
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
    """Open a task group that raises the first error itself, and not an exception group.

    A cancellation from outside takes precedence over the errors of the group: a caller that handles these errors would
    otherwise continue as if it had not been cancelled.
    """
    task = asyncio.current_task()
    assert task is not None, "used outside of a task"
    before = task.cancelling()
    try:
        async with TaskGroup() as group:
            yield group
            # before Python 3.13 a group that fails in __aexit__ counts its own cancellation as one from outside
            while group.unfinished:
                await asyncio.wait(group.unfinished)
    except BaseExceptionGroup as failures:
        if task.cancelling() > before:
            raise asyncio.CancelledError from failures
        raise _first(failures) from failures


@asynccontextmanager
async def repeating(seconds: float, function: Callable[[], None]) -> AsyncIterator[None]:
    """Call a function every `seconds` while the context lasts. Its exception ends the body, and is raised."""

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
    """Run a blocking function on a thread, and wait for its end even if cancelled, also repeatedly.

    A thread cannot be stopped: its resources may be closed only after the function has returned.

    Args:
        executor: the executor; None for the threads of the event loop.
        function: the function.
        *args: the arguments of the function.
        abort: called on cancellation, to make the function return soon.
        dispose: called with the result of the function if a cancellation keeps it from the caller.
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
        # raise the cancellation, whatever the function returned or raised
        if not future.cancelled() and future.exception() is None and dispose is not None:
            dispose(future.result())
        raise
