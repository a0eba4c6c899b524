"""Calls that run one after the other on threads shared with others."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor


class SerialExecutor:
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
