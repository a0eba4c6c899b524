"""The throughput of ranges in progress, and the detection of ranges that lag behind the others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LAG_SECONDS = 5.0
"""How long a range must be slow compared with the others before it counts as lagging."""

_CHECK_SECONDS = 0.5
_SHARE = 0.1
_NEW_WEIGHT = 0.3


class RangeThroughput:
    """The throughput of one range.

    Args:
        now: the time of the request, in seconds of a monotonic clock.
    """

    def __init__(self, now: float) -> None:
        self._samples = deque([(now, 0)])
        self._total = 0

    def add(self, size: int) -> None:
        """Count received bytes."""
        self._total += size

    def restart(self, now: float) -> None:
        """Discard the samples so far, because the host asked for a pause."""
        self._samples = deque([(now, self._total)])

    def sample(self, now: float) -> None:
        """Take a sample. Called regularly, so that `rate` covers the last `LAG_SECONDS`."""
        self._samples.append((now, self._total))
        while self._samples[1][0] <= now - LAG_SECONDS:
            self._samples.popleft()

    def age(self, now: float) -> float:
        """Return the time covered by the samples in seconds, at most a little more than `LAG_SECONDS`."""
        return now - self._samples[0][0]

    def rate(self, now: float) -> float:
        """Return the throughput in bytes per second."""
        return (self._total - self._samples[0][1]) / max(self.age(now), 1e-3)


class HostThroughput:
    """The ranges in progress from one host.

    A range lags if it is slower than a tenth of the host's usual throughput, and of the fastest other range. Nothing
    lags while all ranges are slow, or before a first range is complete.
    """

    def __init__(self) -> None:
        self._ranges = set[RangeThroughput]()
        self._usual_rate = 0.0

    @contextmanager
    def watched(self, on_lag: Callable[[], object], is_paused: Callable[[], bool]) -> Iterator[RangeThroughput]:
        """Watch a range while the context lasts.

        Args:
            on_lag: called once if the range lags.
            is_paused: whether the host asked for a pause, so that no data is expected.
        """
        loop = asyncio.get_running_loop()
        watched = RangeThroughput(loop.time())
        self._ranges.add(watched)
        timer = _Timer()

        def check() -> None:
            now = loop.time()
            if is_paused():
                watched.restart(now)
            watched.sample(now)
            if self.lags(watched, now):
                on_lag()
            else:
                timer.start(check)

        timer.start(check)
        try:
            yield watched
            self.completed(watched, loop.time())
        finally:
            timer.cancel()
            self._ranges.discard(watched)

    def completed(self, one: RangeThroughput, now: float) -> None:
        """Update the usual throughput from a complete range."""
        rate = one.rate(now)
        self._usual_rate += _NEW_WEIGHT * (rate - self._usual_rate) if self._usual_rate else rate

    def lags(self, one: RangeThroughput, now: float) -> bool:
        """Whether a range lags behind the others."""
        if one.age(now) < LAG_SECONDS:
            return False
        others = [other.rate(now) for other in self._ranges if other is not one]
        return one.rate(now) < _SHARE * min(self._usual_rate, max(others, default=self._usual_rate))


class _Timer:
    """The timer of a range's next check."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    def start(self, check: Callable[[], None]) -> None:
        self._handle = asyncio.get_running_loop().call_later(_CHECK_SECONDS, check)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
