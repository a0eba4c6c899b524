"""The choice of builders: which rank builds which layer for all. Pure decisions, without network and clock.

What is built from a layer is its *artifact*. An artifact that a rank already has comes from such a rank; any other is
built by one rank, which gets the layer's blob for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberState:
    """What a rank that builds layers with others has.

    Attributes:
        blobs: the numbers of the blobs that it has completely.
        artifacts: for each layer whether it has the artifact.
    """

    blobs: frozenset[int]
    artifacts: tuple[bool, ...]


def choose_sources(
    layers: Sequence[int], sizes: Sequence[int], members: Mapping[int, MemberState], before: Sequence[int | None]
) -> list[int]:
    """Return for each layer the rank that its artifact comes from.

    The largest blob is assigned first, to the least loaded rank; to a rank that has the blob, if that does not delay
    the last rank. Layers of the same blob are built by one rank.

    Args:
        layers: for each layer the number of its blob.
        sizes: the sizes of the blobs, in bytes.
        members: the ranks that take part; at least one.
        before: for each layer the rank that was to build it before; it goes on, if it still takes part.

    Returns:
        For each layer a rank that has its artifact, or builds it.
    """
    found: dict[int, int] = {}
    load = dict.fromkeys(sorted(members), 0)
    unassigned = dict.fromkeys(range(len(sizes)), 0)  # bytes to build, by blob
    for layer, blob in enumerate(layers):
        holders = [rank for rank in load if members[rank].artifacts[layer]]
        former = before[layer]
        if holders:
            found[layer] = former if former in holders else holders[layer % len(holders)]
        elif former in load:
            found[layer] = former
            load[former] += sizes[blob]
        else:
            unassigned[blob] += sizes[blob]
    total = sum(unassigned.values()) + sum(load.values())
    soonest = max(total // len(load), *unassigned.values(), *load.values())
    chosen: dict[int, int] = {}
    for blob in sorted(unassigned, key=lambda blob: (-unassigned[blob], blob)):
        if not unassigned[blob] and sizes[blob]:
            continue
        rank = min(load, key=load.__getitem__)
        holders = [one for one in load if blob in members[one].blobs]
        holder = min(holders, key=load.__getitem__, default=rank)
        if load[holder] + unassigned[blob] <= max(soonest, load[rank] + unassigned[blob]):
            rank = holder
        chosen[blob] = rank
        load[rank] += unassigned[blob]
    return [found[layer] if layer in found else chosen[blob] for layer, blob in enumerate(layers)]


def lacking(members: Mapping[int, MemberState], layer: int, source: int) -> list[int]:
    """Return the ranks that will receive a layer's artifact, in ascending order."""
    return sorted(rank for rank, member in members.items() if rank != source and not member.artifacts[layer])


def differing_groups(fingerprints: Mapping[int, str]) -> dict[str, list[int]]:
    """Group the ranks by what they assembled.

    Args:
        fingerprints: the fingerprint of each rank's output.

    Returns:
        The ranks of each fingerprint, the largest group first; empty if all fingerprints are equal.
    """
    found: dict[str, list[int]] = {}
    for rank, fingerprint in sorted(fingerprints.items()):
        found.setdefault(fingerprint, []).append(rank)
    if len(found) < 2:
        return {}
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))
