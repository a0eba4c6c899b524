"""The report: tables, and a JSON document with all results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.limits import LimitStage, LimitWork, limit_of
from bench.tables import aligned, times

if TYPE_CHECKING:
    from bench.comparisons import Comparison
    from bench.rounds import Results, Sample, StageSample

_HEADER = (
    *("output", "location", "peer", "median s", "min - max s", "to first", "to limit"),
    *("CPU s", "CPU s/GB", "peak RSS MiB", "MB", "written"),
)
_LIMIT_HEADER = ("output", "location", "limit s", "all/cores s", "chain s", "CPU s by stage")
_NAMES = 3  # columns of text
_GB = 1e9
_UNCOUNTED = 0.1  # below this ratio the kernel did not count the output, only files beside it


@dataclass(frozen=True, slots=True)
class Row:
    """The summary of one peer in one comparison and location.

    Attributes:
        comparison, location, peer: names of these.
        wall_seconds: median wall time.
        wall_seconds_min, wall_seconds_max: extremes of the wall time.
        to_first: median over the rounds of the wall time divided by that of the first peer; None without one.
        to_limit: median over the rounds of the wall time divided by the limit; None without a limit.
        cpu_seconds: median processor time.
        cpu_seconds_per_gb: processor time by the size of the layers' tars, for downloads of the blobs; None where the
            size was not measured.
        max_rss: peak memory, in bytes.
        output_bytes: size of the output.
        written_ratio: median of written bytes divided by the output's size; None where the kernel counts none.
    """

    comparison: str
    location: str
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
    """The limit of a comparison in one location, as medians over the rounds.

    Attributes:
        comparison, location: names of both.
        seconds: the limit.
        shared_seconds: processor time of all stages, divided by the cores.
        chain_seconds: longest chain of one layer.
        stages: processor seconds of each stage.
    """

    comparison: str
    location: str
    seconds: float
    shared_seconds: float
    chain_seconds: float
    stages: dict[LimitStage, float]


def summarize(results: Results, comparisons: Sequence[Comparison], cores: int) -> list[Row]:
    """Return a row for each peer in each comparison and location, in the order of the first runs."""
    known = {comparison.name: comparison for comparison in comparisons}
    limits = {
        (sample.comparison, sample.location, sample.round): limit_of(
            sample.work, known[sample.comparison].stages, cores
        ).seconds
        for sample in results.stage_samples
    }
    groups: dict[tuple[str, str, str], list[Sample]] = {}
    for sample in results.samples:
        groups.setdefault((sample.comparison, sample.location, sample.peer), []).append(sample)
    rows = []
    for (name, location, peer), group in groups.items():
        first = {
            sample.round: sample.usage.wall_seconds
            for sample in groups.get((name, location, known[name].peers[0].name), ())
        }
        limit = {number: seconds for (*key, number), seconds in limits.items() if key == [name, location]}
        seconds = [sample.usage.wall_seconds for sample in group]
        cpu_seconds = median(sample.usage.cpu_seconds for sample in group)
        size = _amount(results.stage_samples, known[name])
        rows.append(
            Row(
                name,
                location,
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
    """Return a row for each comparison and location with a limit."""
    stages = {comparison.name: comparison.stages for comparison in comparisons}
    groups: dict[tuple[str, str], list[LimitWork]] = {}
    for sample in results.stage_samples:
        groups.setdefault((sample.comparison, sample.location), []).append(sample.work)
    rows = []
    for (name, location), works in groups.items():
        limits = [limit_of(work, stages[name], cores) for work in works]
        rows.append(
            LimitRow(
                name,
                location,
                median(limit.seconds for limit in limits),
                median(limit.shared_seconds for limit in limits),
                median(limit.chain_seconds for limit in limits),
                {stage: median(work.total(stage) for work in works) for stage in stages[name]},
            )
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    """Format the rows as a table."""
    return aligned([_HEADER, *map(_cells, rows)], _NAMES)


def limit_table(rows: Sequence[LimitRow]) -> str:
    """Format the limits as a table."""
    cells = [
        (
            row.comparison,
            row.location,
            f"{row.seconds:.2f}",
            f"{row.shared_seconds:.2f}",
            f"{row.chain_seconds:.2f}",
            ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in row.stages.items()),
        )
        for row in rows
    ]
    return aligned([_LIMIT_HEADER, *cells], 2)


def document(
    results: Results, comparisons: Sequence[Comparison], environment: dict[str, Any], cores: int
) -> dict[str, Any]:
    """Return the JSON document: the environment, the rows, the limits, and all samples."""
    return {
        **environment,
        "failures": results.failures,
        "summary": [asdict(row) for row in summarize(results, comparisons, cores)],
        "limits": [asdict(row) for row in summarize_limits(results, comparisons, cores)],
        "samples": [asdict(sample) for sample in results.samples],
        "stage_samples": [asdict(sample) for sample in results.stage_samples],
    }


def _ratio(group: Iterable[Sample], by_round: dict[int, float]) -> float | None:
    ratios = [sample.usage.wall_seconds / by_round[sample.round] for sample in group if by_round.get(sample.round)]
    return median(ratios) if ratios else None


def _written(group: Sequence[Sample]) -> float | None:
    ratio = median(sample.usage.written_bytes / max(sample.output.bytes, 1) for sample in group)
    return ratio if ratio > _UNCOUNTED else None


def _amount(stage_samples: Iterable[StageSample], comparison: Comparison) -> int:
    """Return the size that the processor time of a comparison refers to."""
    return max(
        (sample.work.blob_bytes if comparison.is_download else sample.work.tar_bytes for sample in stage_samples),
        default=0,
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.comparison,
        row.location,
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
