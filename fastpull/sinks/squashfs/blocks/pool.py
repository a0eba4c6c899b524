"""Who compresses: threads of a pool, and where those are busy the threads that have something to be compressed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_AHEAD = 2  # calls for each thread of the pool, one of them waiting, so that none has to wait for the next


class CompressionPool:
    """Makes calls on as many threads as may compute at once, those of its members included.

    A member is a thread that computes between its calls, too. While there are as many of them as may compute, each
    makes its own calls: handing them over would only wake threads that have to wait for a core, and move what they work
    on from one core's cache to another's. With two layers on two cores that is 8 % of the time.

    Args:
        pool: whose threads help.
        workers: threads that may compute at once.
    """

    def __init__(self, pool: Executor, workers: int) -> None:
        self._pool = pool
        self._workers = workers
        self._members = 0
        self._handed = 0
        self._lock = threading.Lock()

    def join(self) -> None:
        """Says that a thread more computes."""
        with self._lock:
            self._members += 1

    def leave(self) -> None:
        """Says that it does not any more."""
        with self._lock:
            self._members -= 1

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Makes a call: on another thread, or at once, if none is free."""
        with self._lock:
            is_handed = self._handed < _AHEAD * (self._workers - self._members)
            self._handed += is_handed
        if is_handed:
            future = self._pool.submit(function, *args, **kwargs)
            future.add_done_callback(self._count_down)
            return future
        future = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  # it is raised where the result is wanted
            future.set_exception(error)
        return future

    def _count_down(self, _: object) -> None:
        with self._lock:
            self._handed -= 1
