"""The connections to one host, granted to whoever is most urgent."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from fastpull.registry.flows import Flows
from fastpull.registry.ranges import Pace, RangePlan
from fastpull.tasks import Turn, Turns


class Lanes:
    """As many turns as a `Pace` allows connections.

    Args:
        max_connections: to the host, whatever the pace says.
        latency: seconds until the host answers, 0 if nobody knows.

    Attributes:
        flows: the streams over these connections.
    """

    def __init__(self, max_connections: int, latency: float = 0.0) -> None:
        self.pace = Pace(max_connections, latency)
        self._turns = Turns(self.pace.connections)
        self._plans: list[RangePlan] = []
        self.flows = Flows()

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

    async def acquire(self, rank: int) -> Turn:
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
