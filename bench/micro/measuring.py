"""The type of the benchmark fixture, and the report of throughput."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

MEGABYTE = 1_000_000


class Benchmark(Protocol):
    """The used part of pytest-benchmark's fixture."""

    extra_info: dict[str, Any]

    @property
    def stats(self) -> Any:
        """Return the results, or None without a measurement."""

    def pedantic(
        self, target: Callable[..., Any], args: tuple[Any, ...] = (), *, rounds: int, setup: Any = None
    ) -> Any:
        """Run the target for a number of rounds; `setup` runs before each and may return its arguments."""


def report(benchmark: Benchmark, **amounts: int) -> None:
    """Record the amounts of a round and their throughput.

    Args:
        benchmark: finished benchmark.
        amounts: amounts by unit: ``bytes``, ``entries``.
    """
    benchmark.extra_info.update(amounts)
    if benchmark.stats is None:
        return
    seconds = benchmark.stats.stats.median
    for unit, amount in amounts.items():
        if unit == "bytes":
            benchmark.extra_info["megabytes_per_second"] = round(amount / MEGABYTE / seconds, 1)
        else:
            benchmark.extra_info[f"{unit}_per_second"] = round(amount / seconds)
