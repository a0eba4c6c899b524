"""Which bytes to ask for next: pure decisions, without a connection and without a clock."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

MIB = 1 << 20
FIRST_RANGE = 8 * MIB
"""The size of the first range of a blob, which also tells whether the host knows ranges, and where the blob is."""

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")


@dataclass(frozen=True, slots=True)
class ContentRange:
    """What a 206 says that its body is.

    Attributes:
        start, stop: of the body within the blob; ``stop`` is one past its last byte.
        total: size of the blob, or None.

    Spec: RFC 9110, 14.4.
    """

    start: int
    stop: int
    total: int | None

    @classmethod
    def parse(cls, header: str) -> ContentRange | None:
        """Reads a ``Content-Range`` header; None for one that is not of bytes, or makes no sense."""
        match = _CONTENT_RANGE.fullmatch(header.strip())
        if match is None:
            return None
        start, last = int(match[1]), int(match[2])
        total = None if match[3] == "*" else int(match[3])
        if last < start or (total is not None and last >= total):
            return None
        return cls(start, last + 1, total)


class RangePlan:
    """Cuts the gaps of a blob into ranges, the lowest first, so that a reader from the front never waits long."""

    def __init__(self, gaps: Iterable[tuple[int, int]]) -> None:
        self._gaps = deque(gaps)

    @property
    def left(self) -> int:
        """Bytes that were not taken yet."""
        return sum(stop - start for start, stop in self._gaps)

    def take(self, size: int) -> tuple[int, int] | None:
        """The next range ``(start, stop)`` of at most ``size`` bytes; None when all were taken.

        A range ends at a multiple of 1 MiB where it can; a rest that would be under half of ``size`` is taken along.
        """
        if not self._gaps:
            return None
        start, stop = self._gaps.popleft()
        if stop - start > size + size // 2:
            cut = max(start + MIB, (start + size) // MIB * MIB)
            self._gaps.appendleft((cut, stop))
            stop = cut
        return start, stop


class Pace:
    """How many connections to a host, and how large the ranges: found by trying.

    The number of connections climbs while that brings more bytes per second, and halves when the host says that it is
    too many. It begins higher with a host that is far away: how much a connection brings is limited by what may be on
    its way, so that it takes more of them to fill the same line. A range is as large as one connection brings in a
    second: a request's round trip is then small beside it, and little is lost with a connection. Before that is known
    it is larger where the round trip is longer. Towards the end it is what each connection would have to fetch of all
    that is left: then they end at much the same time.

    Args:
        max_connections: never more than so many.
        latency: seconds until the host answers, 0 if nobody knows.
    """

    start_connections = 6
    start_latency = 0.010  # for each so many seconds one more
    window_seconds = 0.5
    range_seconds = 1.0
    range_latency = 0.040  # for each so many seconds the first ranges are as large again
    max_range = 32 * MIB

    def __init__(self, max_connections: int, latency: float = 0.0) -> None:
        self.connections = min(self.start_connections + int(latency / self.start_latency), max_connections)
        self._max = max_connections
        self._latency = latency
        self._best_rate = 0.0
        self._window_start: float | None = None
        self._window_bytes = 0
        self._rate = 0.0
        self._slowed = -self.window_seconds

    def range_size(self, left: int) -> int:
        """The size of the next range, in bytes.

        Args:
            left: what is to be fetched from the host and was not asked for yet.
        """
        if self._rate:
            wanted = int(self._rate / self.connections * self.range_seconds)
        else:
            wanted = int(FIRST_RANGE * (1 + self._latency / self.range_latency))
        wanted = min(wanted, max(FIRST_RANGE, left // self.connections))
        return min(self.max_range, max(MIB, wanted // MIB * MIB))

    def received(self, size: int, now: float, busy: bool) -> None:
        """Counts bytes that came.

        Args:
            size: how many.
            now: seconds of a monotonic clock.
            busy: whether as many connections as allowed are in use; without that the rate says nothing about more.
        """
        if self._window_start is None:
            self._window_start = now
        self._window_bytes += size
        elapsed = now - self._window_start
        if elapsed < self.window_seconds:
            return
        self._rate = self._window_bytes / elapsed
        self._window_start, self._window_bytes = now, 0
        if not busy:
            return
        if self._rate > 1.1 * self._best_rate:
            more = self.connections // 2 if self._best_rate else 2  # a line may be full from the beginning
            self._best_rate = self._rate
            self.connections = min(self._max, self.connections + more)
        elif self._rate < 0.5 * self._best_rate:
            self._best_rate = self._rate  # the network is another now: climb again from here

    def slow_down(self, now: float) -> None:
        """Takes note of a 429 or 503: half as many connections from now on. A burst of them counts once."""
        if now - self._slowed >= self.window_seconds:
            self._slowed = now
            self.connections = self._max = max(1, self.connections // 2)
