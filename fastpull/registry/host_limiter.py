"""The connections to one host, granted to whoever is most urgent."""

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
    """As many turns as a `AdaptiveConcurrency` allows connections.

    Args:
        max_connections: to the host, whatever the pace says.
        latency: seconds until the host answers, 0 if nobody knows.

    Attributes:
        flows: the streams over these connections.
    """

    def __init__(self, max_connections: int, latency: float = 0.0) -> None:
        self.pace = AdaptiveConcurrency(max_connections, latency)
        self._turns = PrioritySemaphore(self.pace.connections)
        self._plans: list[RangePlan] = []
        self.flows = HostThroughput()

    @contextmanager
    def planned(self, plan: RangePlan) -> Iterator[None]:
        """Takes note of what is to come over these lanes, as long as the context lasts."""
        self._plans.append(plan)
        try:
            yield
        finally:
            self._plans.remove(plan)

    @property
    def range_size(self) -> int:
        """The size of the next range, in bytes."""
        return self.pace.range_size(sum(plan.left for plan in self._plans))

    async def acquire(self, rank: int) -> Permit:
        """Waits for a connection; of those who wait the lowest ``rank`` goes first."""
        return await self._turns.acquire(rank)

    def received(self, size: int) -> None:
        """Counts bytes that came over these lanes."""
        self.pace.received(size, time.monotonic(), busy=self._turns.all_used)
        self._turns.resize(self.pace.connections)

    def slow_down(self) -> None:
        """Takes note of a host that says it is asked too much."""
        self.pace.slow_down(time.monotonic())
        self._turns.resize(self.pace.connections)
