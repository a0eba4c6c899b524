"""Rounds: each peer's turn, in each comparison and place."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

from bench.measure import OutputSize, ProcessUsage, measure, output_size
from bench.stages import measure_stages
from tests.support.folders import spread, temporary_folder
from tests.support.programs import run
from tests.support.setup_errors import ProgramFailed

if TYPE_CHECKING:
    from bench.comparisons import Comparison
    from bench.limits import LimitWork
    from bench.peers import Peer
    from bench.sources import ImageSource, Where
    from tests.support.images.layouts import Layout


@dataclass(frozen=True, slots=True)
class OutputLocation:
    """Where trees are made.

    Attributes:
        name: for people.
        folder: that exists.
        keeps: whether what was made stays until all rounds are over, so that no run follows a removal.
    """

    name: str
    folder: str
    keeps: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """One run.

    Attributes:
        comparison, place: their names.
        round: counted from 0.
        peer: its name.
        usage: what it took.
        output: what it made.
    """

    comparison: str
    place: str
    round: int
    peer: str
    usage: ProcessUsage
    output: OutputSize


@dataclass(frozen=True, slots=True)
class Need:
    """What the machine needed for a job, in one round.

    Attributes:
        comparison, place: their names.
        round: counted from 0.
        work: of the stages.
    """

    comparison: str
    place: str
    round: int
    work: LimitWork


@dataclass(slots=True)
class Results:
    """What came of all rounds.

    Attributes:
        samples: of each run that succeeded.
        needs: one for each round of a comparison that has a limit.
        failures: a message for each run that failed or did not make what the others made.
    """

    samples: list[Sample] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def run_rounds(
    layout: Layout,
    sources: Mapping[Where, ImageSource],
    comparisons: Sequence[Comparison],
    places: Sequence[OutputLocation],
    rounds: int,
) -> Results:
    """Runs the peers of each comparison in turn, in another order each round, and measures its stages.

    Args:
        layout: of the image.
        sources: of the image, for all comparisons.
        comparisons: one after the other.
        places: likewise, for each comparison.
        rounds: in each place.
    """
    results = Results()
    for comparison, place in product(comparisons, places):
        source = sources[comparison.source]
        with temporary_folder(place.folder, "fastpull-bench-") as folder:
            spread(folder)
            for number, peer in _turns(comparison.peers, rounds):
                name = f"{comparison.name}, {place.name}, round {number + 1}: {peer.name if peer else 'the stages'}"
                try:
                    if peer is None:
                        results.needs += _measure_stages(layout, source, comparison, place, number, folder)
                        continue
                    sample = _run(source, comparison, peer, place, number, folder)
                except (ProgramFailed, OSError) as error:
                    results.failures.append(f"{name}: {error}")
                    print(f"{name}: failed", file=sys.stderr)
                else:
                    results.samples.append(sample)
                    print(f"{name}: {sample.usage.wall_seconds:.2f} s", file=sys.stderr)
    for comparison in comparisons:
        alike = {peer.name for peer in comparison.peers if peer.is_alike}
        outputs = [one for one in results.samples if one.comparison == comparison.name and one.peer in alike]
        results.failures += _differences(comparison.name, outputs)
    return results


def _turns(peers: Sequence[Peer], rounds: int) -> Iterator[tuple[int, Peer | None]]:
    """Whose turn it is; None for the stages."""
    everybody = (*peers, None)
    for number in range(rounds):
        first = number % len(everybody)
        for peer in (*everybody[first:], *everybody[:first]):
            yield number, peer


@contextmanager
def _folder_of_a_run(place: OutputLocation, parent: str) -> Iterator[str]:
    folder = tempfile.mkdtemp(dir=parent)
    try:
        yield folder
    finally:
        if not place.keeps:
            shutil.rmtree(folder)


def _measure_stages(
    layout: Layout, source: ImageSource, comparison: Comparison, place: OutputLocation, number: int, parent: str
) -> list[Need]:
    if not comparison.stages:
        return []
    with _folder_of_a_run(place, parent) as folder:
        os.sync()
        work = measure_stages(layout, source.repository, folder, comparison.stages)
    return [Need(comparison.name, place.name, number, work)]


def _run(
    source: ImageSource, comparison: Comparison, peer: Peer, place: OutputLocation, number: int, parent: str
) -> Sample:
    with _folder_of_a_run(place, parent) as folder:
        for command in peer.prepare(source, folder):
            run(command)
        commands = peer.commands(source, folder)
        os.sync()  # what was written and removed before is not to be paid for now
        usage = measure(commands, folder)
        output = output_size(os.path.join(folder, peer.output))
        return Sample(comparison.name, place.name, number, peer.name, usage, output)


def _differences(comparison: str, samples: Sequence[Sample]) -> list[str]:
    """A message if the outputs of a comparison do not hold equally much."""
    counts: dict[int, set[str]] = {}
    for sample in samples:
        counts.setdefault(sample.output.entries, set()).add(sample.peer)
    if len(counts) < 2:
        return []
    words = "; ".join(f"{count} by {', '.join(sorted(names))}" for count, names in sorted(counts.items()))
    return [f"{comparison}: the outputs do not have the same number of entries: {words}"]
