"""How many connections a download uses, and how long its ranges are."""

from __future__ import annotations

from fastpull.registry.download.ranges import FIRST_RANGE, MIB


class AdaptiveConcurrency:
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
