"""The comparison of what the ranks of a job were asked for, before they begin. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fastpull.errors import Disagreement

if TYPE_CHECKING:
    from fastpull.cluster.messages import ClaimResult, Hello


def check_agreement(hellos: Mapping[int, Hello]) -> None:
    """Compare all ranks with rank 0.

    Raises:
        Disagreement: a version or an option differs; the error names it, and the ranks.
    """
    first = hellos[0]
    differing = _differing({rank: hello.version for rank, hello in hellos.items()})
    if differing:
        reason = f"the ranks run different versions of fastpull: {first.version} on rank 0, {differing}"
        raise Disagreement(reason, "Start the same program on all nodes")
    for name in sorted({name for hello in hellos.values() for name in hello.asked}):
        differing = _differing({rank: hello.asked.get(name, "nothing") for rank, hello in hellos.items()})
        if differing:
            mine = first.asked.get(name, "nothing")
            reason = f"the ranks were not asked for the same ({name}): {mine} on rank 0, {differing}"
            raise Disagreement(reason, "Give all ranks the same arguments, environment and configuration files")


def _differing(values: Mapping[int, str]) -> str:
    """Return the values that differ from rank 0's, with their ranks: ``zstd:3 on ranks 1 to 3``."""
    others: dict[str, list[int]] = {}
    for rank, value in sorted(values.items()):
        if value != values[0]:
            others.setdefault(value, []).append(rank)
    return ", ".join(f"{value} on {name_ranks(ranks)}" for value, ranks in others.items())


def name_ranks(ranks: Sequence[int]) -> str:
    """Return ranks in words: ``rank 3``, ``ranks 1 to 3 and 7``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [word for run in runs for word in _run_words(run)]
    listed = f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"


def _run_words(run: Sequence[int]) -> list[str]:
    return [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(rank) for rank in run]


def elect(hellos: Mapping[int, Hello], *, each_rank: bool) -> list[int]:
    """Return the ranks that work: the lowest of each node.

    Args:
        hellos: the hellos of all ranks.
        each_rank: whether every rank counts as a node of its own.
    """
    if each_rank:
        return sorted(hellos)
    return sorted(
        {min(rank for rank, other in hellos.items() if other.node == hello.node) for hello in hellos.values()}
    )


def check_claims(claims: Mapping[int, Mapping[str, ClaimResult]], hosts: Mapping[int, str]) -> None:
    """Check that no two ranks use the same cache or output.

    Args:
        claims: the outcomes of each rank's claims, by what the path is for.
        hosts: the host names of the ranks.

    Raises:
        Disagreement: two ranks use the same path.
    """
    for kind in sorted({kind for found in claims.values() for kind in found}):
        sharing = [rank for rank, found in claims.items() if kind in found and found[kind].owner is not None]
        if sharing:
            owners = {owner for rank in sharing if (owner := claims[rank][kind].owner) is not None}
            ranks = sorted({*owners, *sharing})
            own = sorted(rank for rank, found in claims.items() if kind in found and rank not in ranks)
            path = claims[sharing[0]][kind].path
            named = ", ".join(f"rank {rank} on {hosts.get(rank, '?')}" for rank in ranks[:8])
            more = f" and {len(ranks) - 8} others" if len(ranks) > 8 else ""
            have = "have their" if len(own) > 1 else "has its"
            rest = f"; {name_ranks(own)} {have} own" if own else ""
            reason = f"the {kind} {path} is the same {_PLACES[kind]} for {named}{more}{rest}"
            raise Disagreement(reason, _ADVICE[kind])


_PLACES = {"cache": "directory", "output": "file or directory"}
_ADVICE = {
    "cache": "With --mpi each node needs a cache on a disk of its own (--cache, FASTPULL_CACHE); for a cache that "
    "nodes share run fastpull without --mpi: one node downloads, and the others wait",
    "output": "With --mpi each node writes an output on a disk of its own; for one on a shared filesystem run fastpull "
    "once, without --mpi",
}
