"""Who makes what for all: pure decisions, without a fabric and without a clock.

What is made of a layer is its *product*. A product that some rank has comes from such a rank; any other is made by one
rank, which gets the layer's blob for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberState:
    """What a rank that takes part in the making has.

    Attributes:
        blobs: the numbers of those that it has whole.
        products: for each layer whether it has the product.
    """

    blobs: frozenset[int]
    products: tuple[bool, ...]


def choose_sources(
    layers: Sequence[int], sizes: Sequence[int], makers: Mapping[int, MemberState], before: Sequence[int | None]
) -> list[int]:
    """For each layer the rank that its product comes from.

    The largest blob is given away first, to whoever has least to do; to a rank that has the blob, if all are ready just
    as soon then. Layers of the same blob are made by one rank.

    Args:
        layers: for each the number of its blob.
        sizes: of the blobs, in bytes.
        makers: the ranks that take part; one at least.
        before: for each layer the rank that was to make it so far; it goes on, if it is there.

    Returns:
        Ranks of which each has the layer's product, or is to make it.
    """
    found: dict[int, int] = {}
    load = dict.fromkeys(sorted(makers), 0)
    amounts = dict.fromkeys(range(len(sizes)), 0)  # bytes that are still to be worked on
    for layer, blob in enumerate(layers):
        holders = [rank for rank in load if makers[rank].products[layer]]
        former = before[layer]
        if holders:
            found[layer] = former if former in holders else holders[layer % len(holders)]
        elif former in load:
            found[layer] = former
            load[former] += sizes[blob]
        else:
            amounts[blob] += sizes[blob]
    soonest = max((sum(amounts.values()) + sum(load.values())) // len(load), *amounts.values(), *load.values())
    chosen: dict[int, int] = {}
    for blob in sorted(amounts, key=lambda blob: (-amounts[blob], blob)):
        if not amounts[blob] and sizes[blob]:
            continue
        rank = min(load, key=load.__getitem__)
        having = [one for one in load if blob in makers[one].blobs]
        nearest = min(having, key=load.__getitem__, default=rank)
        if load[nearest] + amounts[blob] <= max(soonest, load[rank] + amounts[blob]):
            rank = nearest
        chosen[blob] = rank
        load[rank] += amounts[blob]
    return [found[layer] if layer in found else chosen[blob] for layer, blob in enumerate(layers)]


def lacking(makers: Mapping[int, MemberState], layer: int, source: int) -> list[int]:
    """The ranks that are to get a layer's product, in the order of their numbers."""
    return sorted(rank for rank, maker in makers.items() if rank != source and not maker.products[layer])


def odd_ones(fingerprints: Mapping[int, str]) -> dict[str, list[int]]:
    """Looks whether all ranks have made the same.

    Args:
        fingerprints: of what each has made.

    Returns:
        Nothing if they have. Otherwise all fingerprints, each with its ranks; the one that more than half of the ranks
        have comes first.
    """
    found: dict[str, list[int]] = {}
    for rank, fingerprint in sorted(fingerprints.items()):
        found.setdefault(fingerprint, []).append(rank)
    if len(found) < 2:
        return {}
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))
