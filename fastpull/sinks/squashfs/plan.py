"""The plan of an image: which parts of the runs it takes over, and where they will be.

Pure, and a function of the tree and of the layers' payload alone: which workers made a run, in which order, and what of
it was left out because it could not live, has no part in it.

The data of an image are, layer by layer, the blocks of its files; then, layer by layer, the fragment blocks of which
everything lives; then new ones, of the tails that lived beside dead ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from fastpull.layers.entry import EntryType
from fastpull.layers.tree import Directory, Origin, Tree
from fastpull.sinks.squashfs.runs import NO_SLOT

if TYPE_CHECKING:
    from fastpull.sinks.squashfs.runs import Run


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of a run's file that are taken over as they are.

    Attributes:
        layer: whose run.
        start, stop: within the run's blocks, or its fragments.
    """

    layer: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Tail:
    """A slot of a run.

    Attributes:
        layer: whose run.
        slot: which.
    """

    layer: int
    slot: int


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


@dataclass(frozen=True, slots=True)
class Blocks:
    """Where the blocks of a file are in its run.

    Attributes:
        first: number of the first.
        count: how many.
    """

    first: int
    count: int


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
    layer, entry = origin >> 32, origin & 0xFFFFFFFF
    count, rest = divmod(tree.indexes[layer].sizes[entry], block_size)
    if rest and runs[layer].slot(entry) == NO_SLOT:
        count += 1
    return Blocks(runs[layer].firsts[entry] if count else 0, count)


def live_files(tree: Tree) -> list[Origin]:
    """The files of a tree that hold anything, each once, in the order of layers and entries."""
    found = {
        node
        for _, node in tree.walk()
        if not isinstance(node, Directory)
        and tree.type(node) is EntryType.FILE
        and tree.indexes[node >> 32].sizes[node & 0xFFFFFFFF]
    }
    return sorted(found)


def make_plan(
    tree: Tree,
    runs: Sequence[Run],
    block_size: int,
    content: Content,
) -> Plan:
    """Plans an image.

    Args:
        tree: what the image has to be.
        runs: of all layers.
        block_size: in bytes.
        content: to be looked at where only that can tell whether two things are the same.
    """
    plan = Plan()
    files = live_files(tree)
    tails = _choose_tails(runs, files, content)
    _place_tails(plan, runs, block_size, tails)
    _place_blocks(plan, tree, runs, block_size, files, content, tails)
    return plan


def _choose_tails(runs: Sequence[Run], files: Sequence[Origin], content: Content) -> dict[Origin, Tail]:
    """For each file with a tail the slot that will have it: of equal ones the first."""
    first: dict[bytes, Tail] = {}  # by fingerprint
    choices: dict[Tail, Tail] = {}
    chosen: dict[Origin, Tail] = {}
    for origin in files:
        layer = origin >> 32
        slot = runs[layer].slot(origin & 0xFFFFFFFF)
        if slot == NO_SLOT:
            continue
        own = Tail(layer, slot)
        if own not in choices:
            found = first.setdefault(runs[layer].fingerprint(slot), own)
            choices[own] = found if found == own or content.same_tails(found, own) else own
        chosen[origin] = choices[own]
    return chosen


def _place_tails(plan: Plan, runs: Sequence[Run], block_size: int, chosen: dict[Origin, Tail]) -> None:
    """Decides which fragment blocks stay, and packs the tails of the others anew."""
    live = [bytearray(len(run.slot_lengths)) for run in runs]
    for tail in chosen.values():
        live[tail.layer][tail.slot] = 1
    numbers: list[dict[int, int]] = [{} for _ in runs]  # of the fragment blocks that stay
    left: list[Tail] = []
    for layer, run in enumerate(runs):
        dead = {run.slot_fragments[slot] for slot, lives in enumerate(live[layer]) if not lives}
        for slot, lives in enumerate(live[layer]):
            fragment = run.slot_fragments[slot]
            if fragment in dead:
                if lives:
                    left.append(Tail(layer, slot))
            elif fragment not in numbers[layer]:
                numbers[layer][fragment] = len(plan.fragments)
                plan.fragments.append((layer, fragment))
                _extend(plan.kept, layer, *run.fragments.extent(fragment))
    places = _repack(plan, runs, block_size, left)
    for origin, tail in chosen.items():
        run = runs[tail.layer]
        plan.tails[origin] = places.get(tail) or (
            numbers[tail.layer][run.slot_fragments[tail.slot]],
            run.slot_offsets[tail.slot],
        )


def _repack(plan: Plan, runs: Sequence[Run], block_size: int, tails: Sequence[Tail]) -> dict[Tail, tuple[int, int]]:
    """Fills new fragment blocks; returns where each tail is."""
    places, room = {}, 0
    for tail in tails:
        length = runs[tail.layer].slot_lengths[tail.slot]
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
    blocks = {origin: blocks_of(tree, runs, origin, block_size) for origin in files}
    twins = _twins(runs, blocks, content)
    seen: set[tuple[Origin, Tail | None]] = set()
    for origin in files:
        found, layer = blocks[origin], origin >> 32
        first = twins.get(origin, origin)
        identity = (first if found.count else -1, tails.get(origin))
        if identity in seen:
            plan.duplicates += 1
            plan.duplicate_bytes += tree.indexes[layer].sizes[origin & 0xFFFFFFFF]
        seen.add(identity)
        if not found.count:
            continue
        if first != origin:
            plan.starts[origin] = plan.starts[first]
            continue
        start, stop = runs[layer].blocks.extent(found.first, found.count)
        plan.starts[origin] = plan.data_size
        if stop > start:
            _extend(plan.blocks, layer, start, stop)
            plan.data_size += stop - start


def _twins(runs: Sequence[Run], blocks: dict[Origin, Blocks], content: Content) -> dict[Origin, Origin]:
    """For each file whose blocks are those of an earlier one, that one."""
    alike: dict[bytes, list[tuple[Origin, Blocks]]] = {}
    for origin, found in blocks.items():
        if found.count:
            words = runs[origin >> 32].blocks.words[found.first : found.first + found.count]
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
