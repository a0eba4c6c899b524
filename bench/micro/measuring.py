"""What the benchmarks of stages share: the fixture's type, and throughput."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

MEGABYTE = 1_000_000


class Benchmark(Protocol):
    """As much of pytest-benchmark's fixture as is used here."""

    extra_info: dict[str, Any]

    @property
    def stats(self) -> Any:
        """The results; None where nothing is measured."""

    def pedantic(
        self, target: Callable[..., Any], args: tuple[Any, ...] = (), *, rounds: int, setup: Any = None
    ) -> Any:
        """Runs the target so many times; `setup` runs before each, and may return its arguments."""


def report(benchmark: Benchmark, **amounts: int) -> None:
    """Notes what a round worked on, and how much of it that is in a second.

    Args:
        benchmark: that has run.
        amounts: by unit: ``bytes``, ``entries``.
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
