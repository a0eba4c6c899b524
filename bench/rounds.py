"""Rounds: each peer's turn, in each contest and place."""

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

from bench.errors import ProgramFailed
from bench.folders import spread, temporary_folder
from bench.measure import OutputSize, ProcessUsage, measure, output_size
from bench.programs import run
from bench.stages import measure_stages

if TYPE_CHECKING:
    from bench.contests import Contest
    from bench.layouts import Layout
    from bench.limits import LimitWork
    from bench.peers import Peer
    from bench.sources import ImageSource, Where


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
        contest, place: their names.
        round: counted from 0.
        peer: its name.
        usage: what it took.
        output: what it made.
    """

    contest: str
    place: str
    round: int
    peer: str
    usage: ProcessUsage
    output: OutputSize


@dataclass(frozen=True, slots=True)
class Need:
    """What the machine needed for a job, in one round.

    Attributes:
        contest, place: their names.
        round: counted from 0.
        work: of the stages.
    """

    contest: str
    place: str
    round: int
    work: LimitWork


@dataclass(slots=True)
class Results:
    """What came of all rounds.

    Attributes:
        samples: of each run that succeeded.
        needs: one for each round of a contest that has a limit.
        failures: a message for each run that failed or did not make what the others made.
    """

    samples: list[Sample] = field(default_factory=list)
    needs: list[Need] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def run_rounds(
    layout: Layout,
    sources: Mapping[Where, ImageSource],
    contests: Sequence[Contest],
    places: Sequence[OutputLocation],
    rounds: int,
) -> Results:
    """Runs the peers of each contest in turn, in another order each round, and measures its stages.

    Args:
        layout: of the image.
        sources: of the image, for all contests.
        contests: one after the other.
        places: likewise, for each contest.
        rounds: in each place.
    """
    results = Results()
    for contest, place in product(contests, places):
        source = sources[contest.source]
        with temporary_folder(place.folder, "fastpull-bench-") as folder:
            spread(folder)
            for number, peer in _turns(contest.peers, rounds):
                name = f"{contest.name}, {place.name}, round {number + 1}: {peer.name if peer else 'the stages'}"
                try:
                    if peer is None:
                        results.needs += _measure_stages(layout, source, contest, place, number, folder)
                        continue
                    sample = _run(source, contest, peer, place, number, folder)
                except (ProgramFailed, OSError) as error:
                    results.failures.append(f"{name}: {error}")
                    print(f"{name}: failed", file=sys.stderr)
                else:
                    results.samples.append(sample)
                    print(f"{name}: {sample.usage.wall_seconds:.2f} s", file=sys.stderr)
    for contest in contests:
        alike = {peer.name for peer in contest.peers if peer.is_alike}
        outputs = [one for one in results.samples if one.contest == contest.name and one.peer in alike]
        results.failures += _differences(contest.name, outputs)
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
    layout: Layout, source: ImageSource, contest: Contest, place: OutputLocation, number: int, parent: str
) -> list[Need]:
    if not contest.stages:
        return []
    with _folder_of_a_run(place, parent) as folder:
        os.sync()
        work = measure_stages(layout, source.repository, folder, contest.stages)
    return [Need(contest.name, place.name, number, work)]


def _run(source: ImageSource, contest: Contest, peer: Peer, place: OutputLocation, number: int, parent: str) -> Sample:
    with _folder_of_a_run(place, parent) as folder:
        for command in peer.prepare(source, folder):
            run(command)
        commands = peer.commands(source, folder)
        os.sync()  # what was written and removed before is not to be paid for now
        usage = measure(commands, folder)
        output = output_size(os.path.join(folder, peer.output))
        return Sample(contest.name, place.name, number, peer.name, usage, output)


def _differences(contest: str, samples: Sequence[Sample]) -> list[str]:
    """A message if the outputs of a contest do not hold equally much."""
    counts: dict[int, set[str]] = {}
    for sample in samples:
        counts.setdefault(sample.output.entries, set()).add(sample.peer)
    if len(counts) < 2:
        return []
    words = "; ".join(f"{count} by {', '.join(sorted(names))}" for count, names in sorted(counts.items()))
    return [f"{contest}: the outputs do not have the same number of entries: {words}"]
