"""Calls that run one after the other on shared threads."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor


class SerialExecutor:
    """Runs calls one after the other, in order, on the threads of an executor that has other users.

    Args:
        executor: the executor.
        depth: number of calls that may wait; `submit` blocks while so many wait.
    """

    def __init__(self, executor: Executor, depth: int) -> None:
        self._executor = executor
        self._depth = depth
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._changed = threading.Condition()
        self._is_running = False
        self._error: BaseException | None = None

    def submit(self, function: Callable[..., object], *args: object) -> None:
        """Add a call; block while too many wait.

        Raises:
            Exception: the error of an earlier call; no later call runs.
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
        """Wait until all calls have run; raise the error of a call."""
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
            except BaseException as error:  # noqa: BLE001  # raised again by `submit` and `finish`
                with self._changed:
                    self._error = error
                    self._calls.clear()
