"""The report: a table for people, and everything for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.peers import CONTESTS

if TYPE_CHECKING:
    from bench.rounds import Sample

_HEADER = ("output", "place", "peer", "median s", "min - max s", "speed", "CPU s", "peak RSS MiB", "MB")
_NAMES = 3  # columns of text


@dataclass(frozen=True, slots=True)
class Row:
    """What the runs of one peer in one contest and place come to.

    Attributes:
        contest, place, peer: their names.
        wall_seconds: the median.
        wall_seconds_min, wall_seconds_max: the least and the most.
        speedup: the median, over the rounds, of the wall time of the contest's yardstick by that of the peer; None
            without it.
        cpu_seconds: the median.
        max_rss: the most, in bytes.
        output_bytes: of what was made.
    """

    contest: str
    place: str
    peer: str
    wall_seconds: float
    wall_seconds_min: float
    wall_seconds_max: float
    speedup: float | None
    cpu_seconds: float
    max_rss: int
    output_bytes: int


def summarize(samples: Sequence[Sample]) -> list[Row]:
    """A row for each peer in each contest and place, in the order in which they first ran."""
    yardsticks = {contest.name: contest.yardstick for contest in CONTESTS}
    groups: dict[tuple[str, str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.contest, sample.place, sample.peer), []).append(sample)
    rows = []
    for (contest, place, peer), group in groups.items():
        measured = groups.get((contest, place, yardsticks[contest]), ())
        yardstick = {sample.round: sample.usage.wall_seconds for sample in measured}
        speedups = [
            yardstick[sample.round] / sample.usage.wall_seconds for sample in group if sample.round in yardstick
        ]
        seconds = [sample.usage.wall_seconds for sample in group]
        rows.append(
            Row(
                contest,
                place,
                peer,
                median(seconds),
                min(seconds),
                max(seconds),
                median(speedups) if speedups else None,
                median(sample.usage.cpu_seconds for sample in group),
                max(sample.usage.max_rss for sample in group),
                max(sample.output.bytes for sample in group),
            )
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows, aligned."""
    cells = [_HEADER, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        names = (cell.ljust(width) for cell, width in zip(line[:_NAMES], widths, strict=False))
        numbers = (cell.rjust(width) for cell, width in zip(line[_NAMES:], widths[_NAMES:], strict=True))
        lines.append("  ".join((*names, *numbers)))
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def document(samples: Sequence[Sample], failures: Sequence[str], surroundings: dict[str, Any]) -> dict[str, Any]:
    """The results for machines: what they hold for, the rows, and all samples."""
    return {
        **surroundings,
        "failures": list(failures),
        "summary": [asdict(row) for row in summarize(samples)],
        "samples": [asdict(sample) for sample in samples],
    }


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.contest,
        row.place,
        row.peer,
        f"{row.wall_seconds:.2f}",
        f"{row.wall_seconds_min:.2f} - {row.wall_seconds_max:.2f}",
        "-" if row.speedup is None else f"{row.speedup:.2f}x",
        f"{row.cpu_seconds:.2f}",
        f"{row.max_rss / (1 << 20):.0f}",
        f"{row.output_bytes / 1e6:.1f}",
    )
