"""The connection limiter of one host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fastpull.concurrency.semaphores import Permit, PrioritySemaphore
from fastpull.registry.download.adaptive import AdaptiveConcurrency
from fastpull.registry.download.throughput import HostThroughput

if TYPE_CHECKING:
    from fastpull.registry.download.ranges import RangePlan


class HostLimiter:
    """Grants connections to one host by priority, as many as its `AdaptiveConcurrency` allows.

    Args:
        max_connections: the upper bound of connections to the host.
        latency: the time to a response from the host in seconds; 0 if unknown.

    Attributes:
        concurrency: decides the number of connections and the size of ranges.
        throughput: the ranges in progress over these connections.
    """

    def __init__(self, max_connections: int, latency: float = 0.0) -> None:
        self.concurrency = AdaptiveConcurrency(max_connections, latency)
        self._permits = PrioritySemaphore(self.concurrency.connections)
        self._plans: list[RangePlan] = []
        self.throughput = HostThroughput()

    def __repr__(self) -> str:
        left = sum(plan.left for plan in self._plans)
        return f"<HostLimiter {self.concurrency!r}, {len(self._plans)} downloads, {left} bytes not yet requested>"

    @contextmanager
    def planned(self, plan: RangePlan) -> Iterator[None]:
        """Count the bytes of a plan as still to be requested from this host while the context lasts."""
        self._plans.append(plan)
        try:
            yield
        finally:
            self._plans.remove(plan)

    @property
    def range_size(self) -> int:
        """The size of the next range, in bytes."""
        return self.concurrency.range_size(sum(plan.left for plan in self._plans))

    async def acquire(self, priority: int) -> Permit:
        """Wait for a connection; the lowest ``priority`` is served first."""
        return await self._permits.acquire(priority)

    def received(self, size: int) -> None:
        """Count received bytes."""
        self.concurrency.received(size, time.monotonic(), busy=self._permits.is_exhausted)
        self._permits.resize(self.concurrency.connections)

    def slow_down(self) -> None:
        """Reduce the connections after a 429 or 503 of the host."""
        self.concurrency.slow_down(time.monotonic())
        self._permits.resize(self.concurrency.connections)
