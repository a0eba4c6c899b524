"""The compression pool: worker threads, and the calling thread where all cores are busy."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_CALLS_PER_WORKER = 2  # one running and one queued, so that a worker never waits for its next call


class CompressionPool:
    """Runs calls on as many threads as may compute at once, registered threads included.

    A registered thread also computes between its calls. While there are as many registered threads as workers, each
    runs its own calls: submitting them would only wake threads that wait for a core, and would move the data to the
    cache of another core. Running them in place saves 8 % of the time with two layers on two cores.

    Args:
        executor: the executor of the worker threads.
        workers: the number of threads that may compute at once.
    """

    def __init__(self, executor: Executor, workers: int) -> None:
        self._executor = executor
        self._workers = workers
        self._registered = 0
        self._submitted = 0
        self._lock = threading.Lock()

    def register_thread(self) -> None:
        """Register a computing thread."""
        with self._lock:
            self._registered += 1

    def unregister_thread(self) -> None:
        """Remove a computing thread."""
        with self._lock:
            self._registered -= 1

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call on a worker thread, or at once on this thread if no worker is free."""
        with self._lock:
            has_worker = self._submitted < _CALLS_PER_WORKER * (self._workers - self._registered)
            self._submitted += has_worker
        if has_worker:
            future = self._executor.submit(function, *args, **kwargs)
            future.add_done_callback(self._count_down)
            return future
        future = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  # the future raises it where its result is read
            future.set_exception(error)
        return future

    def _count_down(self, _: object) -> None:
        with self._lock:
            self._submitted -= 1
