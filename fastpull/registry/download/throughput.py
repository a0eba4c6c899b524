"""How fast the streams of one host are, and which of them lags far behind the others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LAG_SECONDS = 5.0
"""How long a stream has to be slow, compared with the others, until it counts as lagging."""

_CHECK_SECONDS = 0.5
_SHARE = 0.1
_NEW_WEIGHT = 0.3


class RangeThroughput:
    """The bytes of one stream.

    Args:
        now: when it was asked for, in seconds of a monotonic clock.
    """

    def __init__(self, now: float) -> None:
        self._samples = deque([(now, 0)])
        self._total = 0

    def add(self, size: int) -> None:
        """Count bytes that came."""
        self._total += size

    def restart(self, now: float) -> None:
        """Forget the time so far: the host had asked for a pause."""
        self._samples = deque([(now, self._total)])

    def sample(self, now: float) -> None:
        """Take a sample, to be done now and then; `rate` is of the last `LAG_SECONDS`."""
        self._samples.append((now, self._total))
        while self._samples[1][0] <= now - LAG_SECONDS:
            self._samples.popleft()

    def age(self, now: float) -> float:
        """Seconds for which samples were taken, `LAG_SECONDS` or a little more at most."""
        return now - self._samples[0][0]

    def rate(self, now: float) -> float:
        """Bytes per second."""
        return (self._total - self._samples[0][1]) / max(self.age(now), 1e-3)


class HostThroughput:
    """The streams of one host.

    A stream lags if it brings less than a tenth of what streams of this host usually bring, and of what the fastest of
    the others brings now. While all are slow none lags; before one has ended nothing is known.
    """

    def __init__(self) -> None:
        self._flows = set[RangeThroughput]()
        self._usual_rate = 0.0

    @contextmanager
    def watched(self, on_lag: Callable[[], object], is_paused: Callable[[], bool]) -> Iterator[RangeThroughput]:
        """Watch a stream as long as the context lasts.

        Args:
            on_lag: called once if the stream lags.
            is_paused: whether the host has asked for a pause, so that nothing is to be expected.
        """
        loop = asyncio.get_running_loop()
        flow = RangeThroughput(loop.time())
        self._flows.add(flow)
        timer = _Timer()

        def check() -> None:
            now = loop.time()
            if is_paused():
                flow.restart(now)
            flow.sample(now)
            if self.lags(flow, now):
                on_lag()
            else:
                timer.start(check)

        timer.start(check)
        try:
            yield flow
            self.ended(flow, loop.time())
        finally:
            timer.cancel()
            self._flows.discard(flow)

    def ended(self, flow: RangeThroughput, now: float) -> None:
        """Learn from a stream that has come to its end."""
        rate = flow.rate(now)
        self._usual_rate += _NEW_WEIGHT * (rate - self._usual_rate) if self._usual_rate else rate

    def lags(self, flow: RangeThroughput, now: float) -> bool:
        """Whether a stream lags far behind the others."""
        if flow.age(now) < LAG_SECONDS:
            return False
        others = [other.rate(now) for other in self._flows if other is not flow]
        return flow.rate(now) < _SHARE * min(self._usual_rate, max(others, default=self._usual_rate))


class _Timer:
    """The next check of a stream."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None

    def start(self, check: Callable[[], None]) -> None:
        self._handle = asyncio.get_running_loop().call_later(_CHECK_SECONDS, check)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
