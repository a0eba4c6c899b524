"""The report: a table for people, and everything for machines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.limits import LimitStage, LimitWork, limit_of
from bench.tables import aligned, times

if TYPE_CHECKING:
    from bench.comparisons import Comparison
    from bench.rounds import Need, Results, Sample

_HEADER = (
    *("output", "place", "peer", "median s", "min - max s", "to first", "to limit"),
    *("CPU s", "CPU s/GB", "peak RSS MiB", "MB", "written"),
)
_LIMIT_HEADER = ("output", "place", "limit s", "all/cores s", "chain s", "CPU s by stage")
_NAMES = 3  # columns of text
_GB = 1e9
_UNCOUNTED = 0.1  # what is written beside an output for which the kernel counts nothing, is less


@dataclass(frozen=True, slots=True)
class Row:
    """What the runs of one peer in one comparison and place come to.

    Attributes:
        comparison, place, peer: their names.
        wall_seconds: the median.
        wall_seconds_min, wall_seconds_max: the least and the most.
        to_first: the median, over the rounds, of the wall time divided by that of the comparison's first peer; None
            without it.
        to_limit: likewise, divided by the limit.
        cpu_seconds: the median.
        cpu_seconds_per_gb: of the layers' tar, in a download of blobs; None where their size was not measured.
        max_rss: the most, in bytes.
        output_bytes: of what was made.
        written_ratio: the median of the bytes written by those of the output; None where the kernel counts none.
    """

    comparison: str
    place: str
    peer: str
    wall_seconds: float
    wall_seconds_min: float
    wall_seconds_max: float
    to_first: float | None
    to_limit: float | None
    cpu_seconds: float
    cpu_seconds_per_gb: float | None
    max_rss: int
    output_bytes: int
    written_ratio: float | None


@dataclass(frozen=True, slots=True)
class LimitRow:
    """What the machine needs for a comparison in one place: medians over the rounds.

    Attributes:
        comparison, place: their names.
        seconds: the limit.
        shared_seconds: the CPU time of all stages, divided by the cores.
        chain_seconds: the longest stage of one layer that cannot be divided.
        stages: CPU seconds of each.
    """

    comparison: str
    place: str
    seconds: float
    shared_seconds: float
    chain_seconds: float
    stages: dict[LimitStage, float]


def summarize(results: Results, comparisons: Sequence[Comparison], cores: int) -> list[Row]:
    """A row for each peer in each comparison and place, in the order in which they first ran."""
    known = {comparison.name: comparison for comparison in comparisons}
    limits = {
        (need.comparison, need.place, need.round): limit_of(need.work, known[need.comparison].stages, cores).seconds
        for need in results.needs
    }
    groups: dict[tuple[str, str, str], list[Sample]] = {}
    for sample in results.samples:
        groups.setdefault((sample.comparison, sample.place, sample.peer), []).append(sample)
    rows = []
    for (name, place, peer), group in groups.items():
        first = {
            sample.round: sample.usage.wall_seconds
            for sample in groups.get((name, place, known[name].peers[0].name), ())
        }
        limit = {number: seconds for (*key, number), seconds in limits.items() if key == [name, place]}
        seconds = [sample.usage.wall_seconds for sample in group]
        cpu_seconds = median(sample.usage.cpu_seconds for sample in group)
        size = _amount(results.needs, known[name])
        rows.append(
            Row(
                name,
                place,
                peer,
                median(seconds),
                min(seconds),
                max(seconds),
                _ratio(group, first),
                _ratio(group, limit),
                cpu_seconds,
                cpu_seconds / size * _GB if size else None,
                max(sample.usage.max_rss for sample in group),
                max(sample.output.bytes for sample in group),
                _written(group),
            )
        )
    return rows


def summarize_limits(results: Results, comparisons: Sequence[Comparison], cores: int) -> list[LimitRow]:
    """A row for each comparison and place that has a limit."""
    stages = {comparison.name: comparison.stages for comparison in comparisons}
    groups: dict[tuple[str, str], list[LimitWork]] = {}
    for need in results.needs:
        groups.setdefault((need.comparison, need.place), []).append(need.work)
    rows = []
    for (name, place), works in groups.items():
        limits = [limit_of(work, stages[name], cores) for work in works]
        rows.append(
            LimitRow(
                name,
                place,
                median(limit.seconds for limit in limits),
                median(limit.shared_seconds for limit in limits),
                median(limit.chain_seconds for limit in limits),
                {stage: median(work.total(stage) for work in works) for stage in stages[name]},
            )
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows, aligned."""
    return aligned([_HEADER, *map(_cells, rows)], _NAMES)


def limit_table(rows: Sequence[LimitRow]) -> str:
    """The limits, aligned."""
    cells = [
        (
            row.comparison,
            row.place,
            f"{row.seconds:.2f}",
            f"{row.shared_seconds:.2f}",
            f"{row.chain_seconds:.2f}",
            ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in row.stages.items()),
        )
        for row in rows
    ]
    return aligned([_LIMIT_HEADER, *cells], 2)


def document(
    results: Results, comparisons: Sequence[Comparison], surroundings: dict[str, Any], cores: int
) -> dict[str, Any]:
    """The results for machines: what they hold for, the rows, the limits, and all samples."""
    return {
        **surroundings,
        "failures": results.failures,
        "summary": [asdict(row) for row in summarize(results, comparisons, cores)],
        "limits": [asdict(row) for row in summarize_limits(results, comparisons, cores)],
        "samples": [asdict(sample) for sample in results.samples],
        "needs": [asdict(need) for need in results.needs],
    }


def _ratio(group: Iterable[Sample], by_round: dict[int, float]) -> float | None:
    ratios = [sample.usage.wall_seconds / by_round[sample.round] for sample in group if by_round.get(sample.round)]
    return median(ratios) if ratios else None


def _written(group: Sequence[Sample]) -> float | None:
    ratio = median(sample.usage.written_bytes / max(sample.output.bytes, 1) for sample in group)
    return ratio if ratio > _UNCOUNTED else None


def _amount(needs: Iterable[Need], comparison: Comparison) -> int:
    """The bytes that a comparison's work is told by."""
    return max((need.work.blob_bytes if comparison.is_download else need.work.tar_bytes for need in needs), default=0)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.comparison,
        row.place,
        row.peer,
        f"{row.wall_seconds:.2f}",
        f"{row.wall_seconds_min:.2f} - {row.wall_seconds_max:.2f}",
        times(row.to_first),
        times(row.to_limit),
        f"{row.cpu_seconds:.2f}",
        "-" if row.cpu_seconds_per_gb is None else f"{row.cpu_seconds_per_gb:.2f}",
        f"{row.max_rss / (1 << 20):.0f}",
        f"{row.output_bytes / 1e6:.1f}",
        times(row.written_ratio),
    )
