"""Failure detection: ranks that are silent, and ranks that hold up the job. Pure state with a clock, no network."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpull.cluster.messages import TaskProgress

_HEARTBEATS = 10  # within each timeout
_MAX_HEARTBEAT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Suspects:
    """Ranks that the job cannot count on.

    Attributes:
        ranks: the ranks.
        seconds: the timeout that they exceeded.
        doing: the work that waited for them, in words.
    """

    ranks: tuple[int, ...]
    seconds: float
    doing: str


class FailureDetector:
    """The signs of life and of progress that one rank has seen.

    Args:
        size: the number of ranks.
        timeout_seconds: a rank that is silent for longer is suspect.
        stall_seconds: without any progress for longer, the ranks that are waited for are suspect.
        clock: returns the time in seconds.
    """

    def __init__(
        self, size: int, timeout_seconds: float, stall_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._last_heard = dict.fromkeys(range(size), clock())
        self._last_progress = clock()
        self._progress: dict[int, TaskProgress] = {}
        self._expected: list[tuple[Callable[[], Iterable[int]], str]] = []

    @property
    def heartbeat_seconds(self) -> float:
        """The interval at which a rank sends heartbeats."""
        return min(_MAX_HEARTBEAT_SECONDS, self._timeout_seconds / _HEARTBEATS, self._stall_seconds / _HEARTBEATS)

    def reset(self) -> None:
        """Begin all intervals anew, such as after this process itself was stopped."""
        self._last_heard = dict.fromkeys(self._last_heard, self._clock())
        self._last_progress = self._clock()

    def heard_from(self, rank: int) -> None:
        """Record a sign of life."""
        self._last_heard[rank] = self._clock()

    def advance(self) -> None:
        """Record that the job made progress."""
        self._last_progress = self._clock()

    def report_progress(self, rank: int, progress: TaskProgress | None) -> bool:
        """Record the progress of a rank; return whether it has changed."""
        if progress is None or progress == self._progress.get(rank):
            return False
        self._progress[rank] = progress
        self.advance()
        return True

    @contextlib.contextmanager
    def expecting(self, missing: Callable[[], Iterable[int]], doing: str) -> Iterator[None]:
        """Name the ranks that are waited for, in case of a stall. The innermost wait that misses a rank counts.

        Args:
            missing: returns the ranks that are waited for.
            doing: the work that waits for them, in words.
        """
        expected = (missing, doing)
        self._expected.append(expected)
        try:
            yield
        finally:
            self._expected.remove(expected)

    def is_silent(self, rank: int) -> bool:
        """Return whether a rank has been silent for longer than the timeout."""
        return self._clock() - self._last_heard[rank] > self._timeout_seconds

    def find_suspects(self, ranks: Sequence[int]) -> Suspects | None:
        """Return the silent ranks, or else, where nothing moves, the ranks that are waited for.

        Args:
            ranks: the ranks that may be silent or waited for.
        """
        silent = tuple(rank for rank in ranks if self.is_silent(rank))
        if silent:
            doing = self._expected[-1][1] if self._expected else "the job went on"
            return Suspects(silent, self._timeout_seconds, doing)
        if self._clock() - self._last_progress > self._stall_seconds:
            for find_missing, doing in reversed(self._expected):
                missing = tuple(rank for rank in find_missing() if rank in ranks)
                if missing:
                    self.advance()
                    return Suspects(missing, self._stall_seconds, doing)
        return None
