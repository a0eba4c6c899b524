"""A stage of a pipeline: on a thread of its own while a core is idle, else on the caller's."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpull.concurrency.cores import IdleCores


class StageExecutor:
    """Run calls one after the other, in the order of their submission.

    A call runs on a thread of the executor if earlier calls run there, or if a core is idle; otherwise the submitting
    thread runs it. So no thread waits for a core while another one has nothing to do. Only one thread submits.

    Args:
        executor: the threads, shared with other stages; they must be enough for all stages that run at once.
        cores: the idle cores.
        depth: the number of calls that may wait; a submission beyond it blocks.
    """

    def __init__(self, executor: Executor, cores: IdleCores, depth: int) -> None:
        self._executor = executor
        self._cores = cores
        self._depth = depth
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._changed = threading.Condition()
        self._is_running = False
        self._error: BaseException | None = None

    def submit(self, function: Callable[..., object], *args: object) -> None:
        """Run a call, now or after the earlier ones.

        Raises:
            Exception: the error of an earlier call; no later call runs then.
        """
        with self._changed:
            while len(self._calls) >= self._depth:
                self._changed.wait()
            self._raise_error()
            if self._is_running:
                self._calls.append((function, args))
                return
            self._is_running = self._cores.try_take()
            if self._is_running:
                self._calls.append((function, args))
        if self._is_running:
            self._executor.submit(self._run)
        else:
            function(*args)

    def finish(self) -> None:
        """Wait until all calls have ended.

        Raises:
            Exception: the error of the first call that failed.
        """
        with self._changed:
            while self._is_running:
                self._changed.wait()
            self._raise_error()

    def drain(self) -> None:
        """Wait until no call runs; waiting calls are dropped."""
        with self._changed:
            self._calls.clear()
            while self._is_running:
                self._changed.wait()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._calls:
                    self._is_running = False
                    self._cores.give_back()
                    self._changed.notify_all()
                    return
                function, args = self._calls.popleft()
                self._changed.notify_all()
            try:
                function(*args)
            except BaseException as error:  # noqa: BLE001  # the submitting thread raises it
                with self._changed:
                    self._error = error
                    self._calls.clear()
