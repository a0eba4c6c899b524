"""The plan of an image: which parts of the runs it takes over, and where they will be.

Pure, and a function of the tree and of the layers' payload alone: which workers made a run, in which order, and what of
it was left out because it could not live, has no part in it.

The data of an image are, layer by layer, the blocks of its files; then, layer by layer, the fragment blocks of which
everything lives; then new ones, of the tails that lived beside dead ones. The layer of the largest blob comes first:
its blocks are in the file already, and stay where they are if nothing among them is dead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from fastpull.layers.entry import EntryType
from fastpull.layers.tree import Directory, Origin, Tree
from fastpull.sinks.squashfs.runs import NO_SLOT

if TYPE_CHECKING:
    from fastpull.sinks.squashfs.runs import Run


Tail: TypeAlias = int
"""A slot of a run: ``layer << 32 | slot``."""

SLOT = 0xFFFFFFFF
"""The part of a `Tail` that is the slot, or of an `Origin` that is the entry."""


class Extent(NamedTuple):
    """Bytes of a run's file that are taken over as they are.

    Attributes:
        layer: whose run.
        start, stop: within the run's blocks, or its fragments.
    """

    layer: int
    start: int
    stop: int


class Blocks(NamedTuple):
    """Where the blocks of a file are in its run.

    Attributes:
        first: number of the first.
        total: how many.
    """

    first: int
    total: int


@dataclass(slots=True)
class Plan:
    """What to put where.

    Attributes:
        blocks: extents of the runs' blocks, in the order of the image.
        starts: for each file with blocks where the first one is, from the beginning of the data.
        data_size: of all blocks.
        kept: extents of the runs' fragments, each one fragment block or several.
        fragments: for each kept fragment block its layer and its number there.
        repacked: the tails of each new fragment block.
        tails: for each file with a tail the number of its fragment block and the place in it.
        duplicates: files whose content another file has, too.
        duplicate_bytes: of those.
    """

    blocks: list[Extent] = field(default_factory=list)
    starts: dict[Origin, int] = field(default_factory=dict)
    data_size: int = 0
    kept: list[Extent] = field(default_factory=list)
    fragments: list[tuple[int, int]] = field(default_factory=list)
    repacked: list[list[Tail]] = field(default_factory=list)
    tails: dict[Origin, tuple[int, int]] = field(default_factory=dict)
    duplicates: int = 0
    duplicate_bytes: int = 0


class Content(Protocol):
    """What a plan cannot know by itself."""

    def same_tails(self, one: Tail, other: Tail) -> bool:
        """Whether two tails, of the same fingerprint, are the same."""

    def same_blocks(self, files: Sequence[tuple[Origin, Blocks]]) -> Iterable[Sequence[Origin]]:
        """Of files whose blocks have the same sizes on the disk, those whose blocks are the same.

        Returns:
            Groups of two or more, each in the order given.
        """


def blocks_of(tree: Tree, runs: Sequence[Run], origin: Origin, block_size: int) -> Blocks:
    """The whole blocks of a file; its last bytes count as one, unless they are a tail."""
    layer, entry = origin >> 32, origin & SLOT
    count, rest = divmod(tree.indexes[layer].sizes[entry], block_size)
    if rest and runs[layer].slot(entry) == NO_SLOT:
        count += 1
    return Blocks(runs[layer].firsts[entry] if count else 0, count)


def live_files(tree: Tree, order: Sequence[int]) -> list[Origin]:
    """The files of a tree that hold anything, each once, in the given order of layers and that of their entries."""
    found: set[Origin] = set()
    folders = [tree.root]
    while folders:
        for node in folders.pop().children.values():
            if isinstance(node, Directory):
                folders.append(node)
                continue
            index, number = tree.indexes[node >> 32], node & SLOT
            if index.types[number] == EntryType.FILE and index.sizes[number]:
                found.add(node)
    ranks = sorted(range(len(order)), key=order.__getitem__)
    return sorted(sorted(found), key=lambda origin: ranks[origin >> 32])


def make_plan(
    tree: Tree,
    runs: Sequence[Run],
    order: Sequence[int],
    block_size: int,
    content: Content,
) -> Plan:
    """Plans an image.

    Args:
        tree: what the image has to be.
        runs: of all layers.
        order: of the layers in the image, by their numbers.
        block_size: in bytes.
        content: to be looked at where only that can tell whether two things are the same.
    """
    plan = Plan()
    files = live_files(tree, order)
    tails = _choose_tails(runs, files, content)
    _place_tails(plan, runs, order, block_size, tails)
    _place_blocks(plan, tree, runs, block_size, files, content, tails)
    return plan


def _choose_tails(runs: Sequence[Run], files: Sequence[Origin], content: Content) -> dict[Origin, Tail]:
    """For each file with a tail the slot that will have it: of equal ones the first."""
    first: dict[bytes, Tail] = {}  # by fingerprint
    choices: dict[Tail, Tail] = {}
    chosen: dict[Origin, Tail] = {}
    for origin in files:
        layer = origin >> 32
        slot = runs[layer].slot(origin & SLOT)
        if slot == NO_SLOT:
            continue
        own = layer << 32 | slot
        choice = choices.get(own)
        if choice is None:
            found = first.setdefault(runs[layer].fingerprint(slot), own)
            choice = choices[own] = found if found == own or content.same_tails(found, own) else own
        chosen[origin] = choice
    return chosen


def _place_tails(
    plan: Plan, runs: Sequence[Run], order: Sequence[int], block_size: int, chosen: dict[Origin, Tail]
) -> None:
    """Decides which fragment blocks stay, and packs the tails of the others anew."""
    live = [bytearray(len(run.slot_lengths)) for run in runs]
    for tail in chosen.values():
        live[tail >> 32][tail & SLOT] = 1
    numbers: list[dict[int, int]] = [{} for _ in runs]  # of the fragment blocks that stay
    left: list[Tail] = []
    for layer in order:
        run = runs[layer]
        dead = {fragment for fragment, lives in zip(run.slot_fragments, live[layer], strict=True) if not lives}
        for fragment in sorted(set(run.slot_fragments) - dead):
            numbers[layer][fragment] = len(plan.fragments)
            plan.fragments.append((layer, fragment))
            _extend(plan.kept, layer, *run.fragments.extent(fragment))
        if dead:
            left.extend(
                layer << 32 | slot
                for slot, lives in enumerate(live[layer])
                if lives and run.slot_fragments[slot] in dead
            )
    places = _repack(plan, runs, block_size, left)
    for origin, tail in chosen.items():
        run, slot = runs[tail >> 32], tail & SLOT
        plan.tails[origin] = places.get(tail) or (
            numbers[tail >> 32][run.slot_fragments[slot]],
            run.slot_offsets[slot],
        )


def _repack(plan: Plan, runs: Sequence[Run], block_size: int, tails: Sequence[Tail]) -> dict[Tail, tuple[int, int]]:
    """Fills new fragment blocks; returns where each tail is."""
    places, room = {}, 0
    for tail in tails:
        length = runs[tail >> 32].slot_lengths[tail & SLOT]
        if length > room:
            plan.repacked.append([])
            room = block_size
        places[tail] = (len(plan.fragments) + len(plan.repacked) - 1, block_size - room)
        plan.repacked[-1].append(tail)
        room -= length
    return places


def _place_blocks(
    plan: Plan,
    tree: Tree,
    runs: Sequence[Run],
    block_size: int,
    files: Sequence[Origin],
    content: Content,
    tails: dict[Origin, Tail],
) -> None:
    """Lays the blocks of the files one after the other; files with the same blocks share them."""
    blocks = {origin: found for origin in files if (found := blocks_of(tree, runs, origin, block_size)).total}
    twins = _twins(runs, blocks, content)
    seen: set[tuple[Origin | None, Tail | None]] = set()
    for origin in files:
        place, layer = blocks.get(origin), origin >> 32
        first = twins.get(origin, origin) if place else None
        identity = (first, tails.get(origin))
        if identity in seen:
            plan.duplicates += 1
            plan.duplicate_bytes += tree.indexes[layer].sizes[origin & SLOT]
        seen.add(identity)
        if place is None or first is None:
            continue
        if first != origin:
            plan.starts[origin] = plan.starts[first]
            continue
        start, stop = runs[layer].blocks.extent(place.first, place.total)
        plan.starts[origin] = plan.data_size
        if stop > start:
            _extend(plan.blocks, layer, start, stop)
            plan.data_size += stop - start


def _twins(runs: Sequence[Run], blocks: dict[Origin, Blocks], content: Content) -> dict[Origin, Origin]:
    """For each file whose blocks are those of an earlier one, that one."""
    alike: dict[bytes, list[tuple[Origin, Blocks]]] = {}
    for origin, found in blocks.items():
        words = runs[origin >> 32].blocks.words[found.first : found.first + found.total]
        alike.setdefault(words.tobytes(), []).append((origin, found))
    twins = {}
    for group in alike.values():
        if len(group) > 1:
            for first, *others in content.same_blocks(group):
                twins.update(dict.fromkeys(others, first))
    return twins


def _extend(extents: list[Extent], layer: int, start: int, stop: int) -> None:
    """Adds an extent, to the last one where it follows that."""
    if extents and extents[-1].layer == layer and extents[-1].stop == start:
        start = extents.pop().start
    extents.append(Extent(layer, start, stop))
