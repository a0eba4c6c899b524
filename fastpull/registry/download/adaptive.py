"""Adaptive concurrency: the number of connections to a host, and the size of ranges."""

from __future__ import annotations

from fastpull.registry.download.ranges import FIRST_RANGE, MIB


class AdaptiveConcurrency:
    """Adapts the number of connections to a host, and the size of ranges, to the measured throughput.

    The number of connections grows while that raises the throughput, and halves when the host reports overload. It
    starts higher for a host with high latency, because the throughput of one connection is limited by its window.

    A range is as large as one connection receives in a second. The round trip of a request is then small in
    comparison, and a broken connection loses little. Before the throughput is known, ranges are larger for a host with
    high latency. At the end, a range is an equal share of the remaining bytes, so that all connections finish together.

    Args:
        max_connections: the upper bound of connections.
        latency: the time to a response from the host in seconds; 0 if unknown.
    """

    start_connections = 6
    start_latency = 0.010  # seconds of latency per additional connection at the start
    window_seconds = 0.5
    range_seconds = 1.0
    range_latency = 0.040  # seconds of latency per additional FIRST_RANGE in the first ranges
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

    def __repr__(self) -> str:
        rate = f"{self._rate / 1e6:.1f} MB/s" if self._rate else "no rate measured"
        return f"<AdaptiveConcurrency {self.connections} of {self._max} connections, {rate}>"

    def range_size(self, left: int) -> int:
        """Return the size of the next range, in bytes.

        Args:
            left: the bytes that are still to be requested from the host.
        """
        if self._rate:
            wanted = int(self._rate / self.connections * self.range_seconds)
        else:
            wanted = int(FIRST_RANGE * (1 + self._latency / self.range_latency))
        wanted = min(wanted, max(FIRST_RANGE, left // self.connections))
        return min(self.max_range, max(MIB, wanted // MIB * MIB))

    def received(self, size: int, now: float, busy: bool) -> None:
        """Count received bytes, and adapt the number of connections at the end of each window.

        Args:
            size: the number of bytes.
            now: the time of a monotonic clock in seconds.
            busy: whether all allowed connections are in use. Otherwise the rate does not justify more of them.
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
            more = self.connections // 2 if self._best_rate else 2  # the link may be saturated from the start
            self._best_rate = self._rate
            self.connections = min(self._max, self.connections + more)
        elif self._rate < 0.5 * self._best_rate:
            self._best_rate = self._rate  # the network has changed: grow again from here

    def slow_down(self, now: float) -> None:
        """Halve the number of connections after a 429 or 503. Several within one window count once."""
        if now - self._slowed >= self.window_seconds:
            self._slowed = now
            self.connections = self._max = max(1, self.connections // 2)
