"""The cores that no thread computes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class IdleCores:
    """Count of computing threads, so that a stage of a layer gets a thread of its own only while a core is idle.

    Threads that wait for bytes count as computing: they go on at any moment. Safe for use by several threads.

    Args:
        cores: the cores that this process may use.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._computing = 0
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """The number of cores."""
        return self._cores

    @property
    def computing(self) -> int:
        """The number of computing threads."""
        return self._computing

    @contextmanager
    def occupy(self) -> Iterator[None]:
        """Register a thread that computes whether a core is idle or not, for as long as the context lasts."""
        with self._lock:
            self._computing += 1
        try:
            yield
        finally:
            self.give_back()

    def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function on this thread, registered as computing."""
        with self.occupy():
            return function(*args, **kwargs)

    def try_take(self) -> bool:
        """Register one more thread if a core is idle for it; return whether there was one."""
        with self._lock:
            is_idle = self._computing < self._cores
            self._computing += is_idle
        return is_idle

    def give_back(self) -> None:
        """Remove a thread that `try_take` registered."""
        with self._lock:
            self._computing -= 1
