"""Rounds: runs of every peer, in each comparison and location."""

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
    from bench.sources import ImageSource, ImageTransport
    from tests.support.images.layouts import Layout


@dataclass(frozen=True, slots=True)
class OutputLocation:
    """A location of outputs.

    Attributes:
        name: display name.
        folder: an existing folder.
        keeps: whether outputs stay until all rounds are over, so that no run follows a removal.
    """

    name: str
    folder: str
    keeps: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a peer.

    Attributes:
        comparison, location: names of both.
        round: number of the round, from 0.
        peer: name of the peer.
        usage: resources it used.
        output: size of its output.
    """

    comparison: str
    location: str
    round: int
    peer: str
    usage: ProcessUsage
    output: OutputSize


@dataclass(frozen=True, slots=True)
class StageSample:
    """The measured stages of a job in one round.

    Attributes:
        comparison, location: names of both.
        round: number of the round, from 0.
        work: processor time of the stages.
    """

    comparison: str
    location: str
    round: int
    work: LimitWork


@dataclass(slots=True)
class Results:
    """The results of all rounds.

    Attributes:
        samples: one for each successful run.
        stage_samples: one for each round of a comparison with a limit.
        failures: a message for each run that failed or whose output differs from the others.
    """

    samples: list[Sample] = field(default_factory=list)
    stage_samples: list[StageSample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def run_rounds(
    layout: Layout,
    sources: Mapping[ImageTransport, ImageSource],
    comparisons: Sequence[Comparison],
    locations: Sequence[OutputLocation],
    rounds: int,
) -> Results:
    """Run the peers of each comparison, in rotating order, and measure its stages.

    Args:
        layout: layout of the image.
        sources: sources of the image, by transport.
        comparisons: comparisons, run one after the other.
        locations: locations, used one after the other in each comparison.
        rounds: number of rounds in each location.
    """
    results = Results()
    for comparison, location in product(comparisons, locations):
        source = sources[comparison.source]
        with temporary_folder(location.folder, "fastpull-bench-") as folder:
            spread(folder)
            for number, peer in _schedule(comparison.peers, rounds):
                name = f"{comparison.name}, {location.name}, round {number + 1}: {peer.name if peer else 'the stages'}"
                try:
                    if peer is None:
                        results.stage_samples += _measure_stages(layout, source, comparison, location, number, folder)
                        continue
                    sample = _run(source, comparison, peer, location, number, folder)
                except (ProgramFailed, OSError) as error:
                    results.failures.append(f"{name}: {error}")
                    print(f"{name}: failed", file=sys.stderr)
                else:
                    results.samples.append(sample)
                    print(f"{name}: {sample.usage.wall_seconds:.2f} s", file=sys.stderr)
    for comparison in comparisons:
        comparable = {peer.name for peer in comparison.peers if peer.is_comparable}
        outputs = [
            sample for sample in results.samples if sample.comparison == comparison.name and sample.peer in comparable
        ]
        results.failures += _differences(comparison.name, outputs)
    return results


def _schedule(peers: Sequence[Peer], rounds: int) -> Iterator[tuple[int, Peer | None]]:
    """Yield the round and the peer of each run; None stands for the stages."""
    runs = (*peers, None)
    for number in range(rounds):
        first = number % len(runs)
        for peer in (*runs[first:], *runs[:first]):
            yield number, peer


@contextmanager
def _run_folder(location: OutputLocation, parent: str) -> Iterator[str]:
    folder = tempfile.mkdtemp(dir=parent)
    try:
        yield folder
    finally:
        if not location.keeps:
            shutil.rmtree(folder)


def _measure_stages(
    layout: Layout, source: ImageSource, comparison: Comparison, location: OutputLocation, number: int, parent: str
) -> list[StageSample]:
    if not comparison.stages:
        return []
    with _run_folder(location, parent) as folder:
        os.sync()
        work = measure_stages(layout, source.repository, folder, comparison.stages)
    return [StageSample(comparison.name, location.name, number, work)]


def _run(
    source: ImageSource, comparison: Comparison, peer: Peer, location: OutputLocation, number: int, parent: str
) -> Sample:
    with _run_folder(location, parent) as folder:
        for command in peer.prepare(source, folder):
            run(command)
        commands = peer.commands(source, folder)
        os.sync()  # earlier writes and removals must not count here
        usage = measure(commands, folder)
        output = output_size(os.path.join(folder, peer.output))
        return Sample(comparison.name, location.name, number, peer.name, usage, output)


def _differences(comparison: str, samples: Sequence[Sample]) -> list[str]:
    """Return a message if the outputs of a comparison differ in their number of entries."""
    counts: dict[int, set[str]] = {}
    for sample in samples:
        counts.setdefault(sample.output.entries, set()).add(sample.peer)
    if len(counts) < 2:
        return []
    words = "; ".join(f"{count} by {', '.join(sorted(names))}" for count, names in sorted(counts.items()))
    return [f"{comparison}: the outputs differ in their number of entries: {words}"]
