"""A clock for nested stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.limits import LimitStage


class Clock:
    """A clock that adds time to the running stage; an inner stage pauses the outer one.

    Args:
        now: function returning seconds; processor time of the thread by default.
    """

    def __init__(self, now: Callable[[], float] = time.thread_time) -> None:
        self._now = now
        self._since = now()
        self._stage: LimitStage | None = None
        self.seconds: dict[LimitStage, float] = {}

    @contextmanager
    def running(self, stage: LimitStage) -> Iterator[None]:
        """Count time for a stage until the context ends."""
        outer = self._switch(stage)
        try:
            yield
        finally:
            self._switch(outer)

    def _switch(self, stage: LimitStage | None) -> LimitStage | None:
        now = self._now()
        if self._stage is not None:
            self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        previous, self._stage, self._since = self._stage, stage, now
        return previous
