"""The plan of an image: which parts of the runs it takes over, and where they will be.

Pure, and a function of the tree and of the layers' payload alone: which workers made a run, in which order, and what of
it was left out because it could not live, has no part in it.

The data of an image are, layer by layer, the blocks of its files; then, layer by layer, the fragment blocks of which
everything lives; then new ones, of the tails that lived beside dead ones. The layer of the largest blob comes first:
its blocks are in the file already, and stay where they are if nothing among them is dead.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from fastpull.layers.entry import EntryType
from fastpull.layers.tree import DirectoryNode, Origin, Tree, entry_of, layer_of, origin_of
from fastpull.native import Fingerprints
from fastpull.sinks.squashfs.blocks.layer_blocks import NO_TAIL_ID

if TYPE_CHECKING:
    from fastpull.sinks.squashfs.blocks.layer_blocks import LayerBlocks


Tail: TypeAlias = int
"""A slot of a layer, as one number that is made as an `Origin` is, with the slot in place of the entry."""

NO_TAIL: Tail = 0xFFFFFFFFFFFFFFFF


class BlockExtent(NamedTuple):
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
class ImagePlan:
    """What to put where.

    Attributes:
        runs: of all layers.
        blocks: extents of the runs' blocks, in the order of the image.
        starts: for each file with blocks where the first one is, from the beginning of the data.
        data_size: of all blocks.
        kept: extents of the runs' fragments, each one fragment block or several.
        fragments: for each kept fragment block its layer and its number there.
        repacked: the tails of each new fragment block.
        chosen: for each layer and each slot the slot that is there for it: itself, or an equal one; `NO_TAIL` if no
            file needs it.
        tail_fragments, tail_offsets: for each layer and each slot that is there, the number of its fragment block and
            the place in it.
        duplicates: files whose content another file has, too.
        duplicate_bytes: of those.
    """

    runs: Sequence[LayerBlocks]
    chosen: Sequence[array[int]]
    blocks: list[BlockExtent] = field(default_factory=list)
    starts: dict[Origin, int] = field(default_factory=dict)
    data_size: int = 0
    kept: list[BlockExtent] = field(default_factory=list)
    fragments: list[tuple[int, int]] = field(default_factory=list)
    repacked: list[array[int]] = field(default_factory=list)
    tail_fragments: list[array[int]] = field(default_factory=list)
    tail_offsets: list[array[int]] = field(default_factory=list)
    duplicates: int = 0
    duplicate_bytes: int = 0

    def tail(self, origin: Origin) -> Tail:
        """The slot that is there for a file's tail, or `NO_TAIL`."""
        slot = self.runs[layer_of(origin)].slot(entry_of(origin))
        return NO_TAIL if slot == NO_TAIL_ID else self.chosen[layer_of(origin)][slot]

    def place(self, tail: Tail) -> tuple[int, int]:
        """The number of the fragment block that holds a slot, and the place in it."""
        layer, slot = layer_of(tail), entry_of(tail)
        return self.tail_fragments[layer][slot], self.tail_offsets[layer][slot]


class Content(Protocol):
    """What a plan cannot know by itself."""

    def same_tails(self, one: Tail, other: Tail) -> bool:
        """Whether two tails, of the same fingerprint, are the same."""

    def same_blocks(self, files: Sequence[tuple[Origin, Blocks]]) -> Iterable[Sequence[Origin]]:
        """Of files whose blocks have the same sizes on the disk, those whose blocks are the same.

        Returns:
            Groups of two or more, each in the order given.
        """


def blocks_of(tree: Tree, runs: Sequence[LayerBlocks], origin: Origin, block_size: int) -> Blocks:
    """The whole blocks of a file; its last bytes count as one, unless they are a tail."""
    layer, entry = layer_of(origin), entry_of(origin)
    count, rest = divmod(tree.indexes[layer].sizes[entry], block_size)
    if rest and runs[layer].slot(entry) == NO_TAIL_ID:
        count += 1
    return Blocks(runs[layer].firsts[entry] if count else 0, count)


def live_files(tree: Tree, order: Sequence[int]) -> array[Origin]:
    """The files of a tree that hold anything, each once, in the given order of layers and that of their entries."""
    lives = [bytearray(len(index)) for index in tree.indexes]
    folders = [tree.root]
    while folders:
        for node in folders.pop().children.values():
            if isinstance(node, DirectoryNode):
                folders.append(node)
            else:
                lives[node >> 32][node & 0xFFFFFFFF] = 1  # an origin, taken apart inline: calls made this loop slower
    found = array("Q")
    for layer in order:
        index = tree.indexes[layer]
        columns = enumerate(zip(lives[layer], index.types, index.sizes, strict=True), origin_of(layer, 0))
        found.extend(origin for origin, (alive, kind, size) in columns if alive and kind == EntryType.FILE and size)
    return found


def make_plan(
    tree: Tree,
    runs: Sequence[LayerBlocks],
    order: Sequence[int],
    block_size: int,
    content: Content,
) -> ImagePlan:
    """Plans an image.

    Args:
        tree: what the image has to be.
        runs: of all layers.
        order: of the layers in the image, by their numbers.
        block_size: in bytes.
        content: to be looked at where only that can tell whether two things are the same.
    """
    files = live_files(tree, order)
    plan = ImagePlan(runs, _choose_tails(runs, files, content))
    _place_tails(plan, order, block_size)
    _place_blocks(plan, tree, block_size, files, content)
    return plan


def _choose_tails(runs: Sequence[LayerBlocks], files: Sequence[Origin], content: Content) -> list[array[Tail]]:
    """For each slot that a file needs the one that will be there for it: of equal ones the first."""
    first, tails = Fingerprints(), array("Q")
    chosen = [array("Q", [NO_TAIL]) * len(run.fingerprints) for run in runs]
    for origin in files:
        layer = layer_of(origin)
        run = runs[layer]
        slot = run.slot(entry_of(origin))
        if slot == NO_TAIL_ID or chosen[layer][slot] != NO_TAIL:
            continue
        choice = own = origin_of(layer, slot)
        fingerprint = run.fingerprints[slot]
        number = first.find(fingerprint)
        if number < 0:
            first.add(fingerprint)
            tails.append(own)
        elif content.same_tails(tails[number], own):
            choice = tails[number]
        chosen[layer][slot] = choice
    return chosen


def _place_tails(plan: ImagePlan, order: Sequence[int], block_size: int) -> None:
    """Decides which fragment blocks stay, and packs the tails of the others anew."""
    lives = [bytearray(len(slots)) for slots in plan.chosen]
    for tail in chain.from_iterable(plan.chosen):
        if tail != NO_TAIL:
            lives[layer_of(tail)][entry_of(tail)] = 1
    left = array("Q")
    plan.tail_fragments = [array("I") for _ in plan.runs]
    plan.tail_offsets = [run.slot_offsets[:] for run in plan.runs]
    for layer in order:
        run, alive = plan.runs[layer], lives[layer]
        dead = {fragment for fragment, lives_on in zip(run.slot_fragments, alive, strict=True) if not lives_on}
        numbers = {}
        for fragment in sorted(set(run.slot_fragments)):
            numbers[fragment] = len(plan.fragments)  # of a dead one it is overwritten below
            if fragment not in dead:
                plan.fragments.append((layer, fragment))
                _extend(plan.kept, layer, *run.fragments.extent(fragment))
        plan.tail_fragments[layer].extend(map(numbers.__getitem__, run.slot_fragments))
        if dead:
            places = enumerate(zip(run.slot_fragments, alive, strict=True), origin_of(layer, 0))
            left.extend(tail for tail, (fragment, lives_on) in places if lives_on and fragment in dead)
    _repack(plan, block_size, left)


def _repack(plan: ImagePlan, block_size: int, tails: Sequence[Tail]) -> None:
    """Fills new fragment blocks."""
    room = 0
    for tail in tails:
        layer, slot = layer_of(tail), entry_of(tail)
        length = plan.runs[layer].slot_lengths[slot]
        if length > room:
            plan.repacked.append(array("Q"))
            room = block_size
        plan.tail_fragments[layer][slot] = len(plan.fragments) + len(plan.repacked) - 1
        plan.tail_offsets[layer][slot] = block_size - room
        plan.repacked[-1].append(tail)
        room -= length


def _place_blocks(plan: ImagePlan, tree: Tree, block_size: int, files: Sequence[Origin], content: Content) -> None:
    """Lays the blocks of the files one after the other; files with the same blocks share them."""
    runs = plan.runs
    blocks = {origin: found for origin in files if (found := blocks_of(tree, runs, origin, block_size)).total}
    twins = _twins(runs, blocks, content)
    _count_duplicates(plan, tree, files, blocks, twins)
    for origin, place in blocks.items():
        first = twins.get(origin, origin)
        if first != origin:
            plan.starts[origin] = plan.starts[first]
            continue
        start, stop = runs[layer_of(origin)].blocks.extent(place.first, place.total)
        plan.starts[origin] = plan.data_size
        if stop > start:
            _extend(plan.blocks, layer_of(origin), start, stop)
            plan.data_size += stop - start


def _count_duplicates(
    plan: ImagePlan, tree: Tree, files: Sequence[Origin], blocks: dict[Origin, Blocks], twins: dict[Origin, Origin]
) -> None:
    """Files are the same if their blocks are, and their tails."""
    seen: set[tuple[Origin, Tail]] = set()
    seen_tails = [bytearray(len(slots)) for slots in plan.chosen]  # of files that are nothing else
    for origin in files:
        tail = plan.tail(origin)
        if origin in blocks:
            identity = twins.get(origin, origin), tail
            is_known = identity in seen
            seen.add(identity)
        else:
            slots, slot = seen_tails[layer_of(tail)], entry_of(tail)
            is_known = bool(slots[slot])
            slots[slot] = 1
        if is_known:
            plan.duplicates += 1
            plan.duplicate_bytes += tree.indexes[layer_of(origin)].sizes[entry_of(origin)]


def _twins(runs: Sequence[LayerBlocks], blocks: dict[Origin, Blocks], content: Content) -> dict[Origin, Origin]:
    """For each file whose blocks are those of an earlier one, that one."""
    alike: dict[bytes, list[tuple[Origin, Blocks]]] = {}
    for origin, found in blocks.items():
        words = runs[layer_of(origin)].blocks.words[found.first : found.first + found.total]
        alike.setdefault(words.tobytes(), []).append((origin, found))
    twins = {}
    for group in alike.values():
        if len(group) > 1:
            for first, *others in content.same_blocks(group):
                twins.update(dict.fromkeys(others, first))
    return twins


def _extend(extents: list[BlockExtent], layer: int, start: int, stop: int) -> None:
    """Adds an extent, to the last one where it follows that."""
    if extents and extents[-1].layer == layer and extents[-1].stop == start:
        start = extents.pop().start
    extents.append(BlockExtent(layer, start, stop))
