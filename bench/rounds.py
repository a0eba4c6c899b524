"""Rounds: each peer's turn, in each contest and place."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from bench.errors import ProgramFailed
from bench.folders import spread, temporary_folder
from bench.measure import OutputSize, Usage, measure, output_size
from bench.programs import run

if TYPE_CHECKING:
    from bench.peers import Contest, Peer


@dataclass(frozen=True, slots=True)
class Place:
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
    usage: Usage
    output: OutputSize


def run_rounds(
    reference: str, contests: Sequence[Contest], places: Sequence[Place], rounds: int
) -> tuple[list[Sample], list[str]]:
    """Runs the peers of each contest in turn, in another order each round.

    Args:
        reference: of the image.
        contests: one after the other.
        places: likewise, for each contest.
        rounds: in each place.

    Returns:
        A sample for each run that succeeded, and a message for each that failed or did not make what the others made.
    """
    samples: list[Sample] = []
    failures: list[str] = []
    for contest, place in product(contests, places):
        with temporary_folder(place.folder, "fastpull-bench-") as folder:
            spread(folder)
            for number, peer in _turns(contest.peers, rounds):
                name = f"{contest.name}, {place.name}, round {number + 1}: {peer.name}"
                try:
                    sample = _run(reference, contest, peer, place, number, folder)
                except (ProgramFailed, OSError) as error:
                    failures.append(f"{name}: {error}")
                    print(f"{name}: failed", file=sys.stderr)
                else:
                    samples.append(sample)
                    print(f"{name}: {sample.usage.wall_seconds:.2f} s", file=sys.stderr)
    for contest in contests:
        failures += _differences(contest.name, [sample for sample in samples if sample.contest == contest.name])
    return samples, failures


def _turns(peers: Sequence[Peer], rounds: int) -> Iterator[tuple[int, Peer]]:
    for number in range(rounds):
        first = number % len(peers)
        for peer in (*peers[first:], *peers[:first]):
            yield number, peer


def _run(reference: str, contest: Contest, peer: Peer, place: Place, number: int, parent: str) -> Sample:
    folder = tempfile.mkdtemp(dir=parent)
    try:
        for command in peer.prepare(reference, folder):
            run(command)
        commands = peer.commands(reference, folder)
        os.sync()  # what was written and removed before is not to be paid for now
        usage = measure(commands, os.path.join(folder, "log"))
        output = output_size(os.path.join(folder, peer.output))
        return Sample(contest.name, place.name, number, peer.name, usage, output)
    finally:
        if not place.keeps:
            shutil.rmtree(folder)


def _differences(contest: str, samples: Sequence[Sample]) -> list[str]:
    """A message if the outputs of a contest do not hold equally much."""
    counts: dict[int, set[str]] = {}
    for sample in samples:
        counts.setdefault(sample.output.entries, set()).add(sample.peer)
    if len(counts) < 2:
        return []
    words = "; ".join(f"{count} by {', '.join(sorted(names))}" for count, names in sorted(counts.items()))
    return [f"{contest}: the outputs do not have the same number of entries: {words}"]
