"""Rounds: each peer's turn, in each place, from nothing to a tree."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.errors import ProgramFailed
from bench.folders import spread, temporary_folder
from bench.measure import TreeSize, Usage, measure, tree_size

if TYPE_CHECKING:
    from bench.peers import Peer


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
        place: its name.
        round: counted from 0.
        peer: its name.
        usage: what it took.
        tree: what it made.
    """

    place: str
    round: int
    peer: str
    usage: Usage
    tree: TreeSize


def run_rounds(
    reference: str, peers: Sequence[Peer], places: Sequence[Place], rounds: int
) -> tuple[list[Sample], list[str]]:
    """Runs all peers in turn, in another order each round.

    Args:
        reference: of the image.
        peers: that take part.
        places: one after the other.
        rounds: in each place.

    Returns:
        A sample for each run that succeeded, and a message for each that failed or whose tree is not like the others'.
    """
    samples: list[Sample] = []
    failures: list[str] = []
    for place in places:
        with temporary_folder(place.folder, "fastpull-bench-") as folder:
            spread(folder)
            for number, peer in _turns(peers, rounds):
                name = f"{place.name}, round {number + 1}: {peer.name}"
                try:
                    sample = _run(reference, peer, place, number, folder)
                except (ProgramFailed, OSError) as error:
                    failures.append(f"{name}: {error}")
                    print(f"{name}: failed", file=sys.stderr)
                else:
                    samples.append(sample)
                    print(f"{name}: {sample.usage.wall_seconds:.2f} s", file=sys.stderr)
    return samples, failures + _differences(samples)


def _turns(peers: Sequence[Peer], rounds: int) -> Iterator[tuple[int, Peer]]:
    for number in range(rounds):
        first = number % len(peers)
        for peer in (*peers[first:], *peers[:first]):
            yield number, peer


def _run(reference: str, peer: Peer, place: Place, number: int, parent: str) -> Sample:
    folder = tempfile.mkdtemp(dir=parent)
    try:
        commands = peer.commands(reference, folder)
        os.sync()  # what was written and removed before is not to be paid for now
        usage = measure(commands, os.path.join(folder, "log"))
        return Sample(place.name, number, peer.name, usage, tree_size(os.path.join(folder, peer.tree)))
    finally:
        if not place.keeps:
            shutil.rmtree(folder)


def _differences(samples: Sequence[Sample]) -> list[str]:
    """A message if the trees are not all of one size."""
    counts: dict[int, set[str]] = {}
    for sample in samples:
        counts.setdefault(sample.tree.entries, set()).add(sample.peer)
    if len(counts) < 2:
        return []
    words = "; ".join(f"{count} by {', '.join(sorted(names))}" for count, names in sorted(counts.items()))
    return [f"the trees do not have the same number of entries: {words}"]
