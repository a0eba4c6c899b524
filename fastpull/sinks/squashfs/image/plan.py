"""The plan of an image: which blocks of the layers it contains, and at which offsets.

Pure: a plan is a function of the tree and of the layers' payload alone. The number of workers, the order in which
layers arrived and the dead blocks that were left out have no influence on it.

The data of an image consists of, in this order:

1. the data blocks of live files, layer by layer;
2. the fragment blocks without dead tail-ends, layer by layer;
3. new fragment blocks with the live tail-ends of all other fragment blocks.

The layer with the largest blob comes first: its data blocks are in the image file already. They stay in place if none
of them is dead.
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


TailRef: TypeAlias = int
"""A tail-end of a layer as one number, composed as an `Origin` is, with the tail ID in place of the entry."""

NO_TAIL: TailRef = 0xFFFFFFFFFFFFFFFF


def tail_ref(layer: int, tail_id: int) -> TailRef:
    """Return the reference to a tail-end of a layer."""
    return origin_of(layer, tail_id)


def tail_id_of(tail: TailRef) -> int:
    """Return the tail ID of a reference; `layer_of` returns its layer."""
    return entry_of(tail)


class BlockExtent(NamedTuple):
    """A byte range of a block file that the image contains unchanged.

    Attributes:
        layer: the number of the layer.
        start, stop: the range in the layer's data file or fragment file.
    """

    layer: int
    start: int
    stop: int


class FileBlocks(NamedTuple):
    """The data blocks of a file.

    Attributes:
        first: the number of the first block in its layer.
        total: the number of blocks.
    """

    first: int
    total: int


@dataclass(slots=True)
class ImagePlan:
    """The blocks of an image and their offsets.

    Attributes:
        layers: the blocks of all layers.
        stored_tails: for each layer and tail ID the tail-end that is stored for it, itself or an equal one; `NO_TAIL`
            if no live file needs it.
        data_extents: extents of the layers' data blocks, in the order of the image.
        data_starts: for each file with data blocks the offset of the first one from the start of the data.
        data_size: the size of all data blocks.
        fragment_extents: extents of the layers' fragment blocks that stay unchanged.
        kept_fragments: for each fragment block that stays unchanged its layer and its number there.
        repacked: the tail-ends of each new fragment block.
        fragment_indexes: for each layer and tail ID the index of its block in the image's fragment table.
        fragment_offsets: for each layer and tail ID the offset in that uncompressed block.
        duplicates: the number of files whose content another file has, too.
        duplicate_bytes: the size of those files.
    """

    layers: Sequence[LayerBlocks]
    stored_tails: Sequence[array[int]]
    data_extents: list[BlockExtent] = field(default_factory=list)
    data_starts: dict[Origin, int] = field(default_factory=dict)
    data_size: int = 0
    fragment_extents: list[BlockExtent] = field(default_factory=list)
    kept_fragments: list[tuple[int, int]] = field(default_factory=list)
    repacked: list[array[int]] = field(default_factory=list)
    fragment_indexes: list[array[int]] = field(default_factory=list)
    fragment_offsets: list[array[int]] = field(default_factory=list)
    duplicates: int = 0
    duplicate_bytes: int = 0

    def tail(self, origin: Origin) -> TailRef:
        """Return the tail-end that is stored for a file, or `NO_TAIL`."""
        layer = layer_of(origin)
        tail_id = self.layers[layer].tail_id(entry_of(origin))
        return NO_TAIL if tail_id == NO_TAIL_ID else self.stored_tails[layer][tail_id]

    def fragment(self, tail: TailRef) -> tuple[int, int]:
        """Return the index of the fragment block that holds a stored tail-end, and the offset in it."""
        layer, tail_id = layer_of(tail), tail_id_of(tail)
        return self.fragment_indexes[layer][tail_id], self.fragment_offsets[layer][tail_id]


class ContentComparer(Protocol):
    """Comparison of content, which needs I/O."""

    def same_tails(self, one: TailRef, other: TailRef) -> bool:
        """Return whether two tail-ends with equal fingerprints are equal."""

    def same_blocks(self, files: Sequence[tuple[Origin, FileBlocks]]) -> Iterable[Sequence[Origin]]:
        """Group files with equal data blocks.

        Args:
            files: files whose block words are equal.

        Returns:
            Groups of two or more files, each in the given order.
        """


def file_blocks(tree: Tree, layers: Sequence[LayerBlocks], origin: Origin, block_size: int) -> FileBlocks:
    """Return the data blocks of a file; a partial last block counts unless it is a tail-end."""
    layer, entry = layer_of(origin), entry_of(origin)
    count, rest = divmod(tree.indexes[layer].sizes[entry], block_size)
    if rest and layers[layer].tail_id(entry) == NO_TAIL_ID:
        count += 1
    return FileBlocks(layers[layer].first_blocks[entry] if count else 0, count)


def live_files(tree: Tree, order: Sequence[int]) -> array[Origin]:
    """Return the non-empty files of a tree, each once, sorted by layer in the given order and then by entry."""
    is_live = [bytearray(len(index)) for index in tree.indexes]
    directories = [tree.root]
    while directories:
        for node in directories.pop().children.values():
            if isinstance(node, DirectoryNode):
                directories.append(node)
            else:
                is_live[node >> 32][node & 0xFFFFFFFF] = 1  # inlined accessors: function calls made this loop slower
    found = array("Q")
    for layer in order:
        index = tree.indexes[layer]
        columns = enumerate(zip(is_live[layer], index.types, index.sizes, strict=True), origin_of(layer, 0))
        found.extend(origin for origin, (live, kind, size) in columns if live and kind == EntryType.FILE and size)
    return found


def make_plan(
    tree: Tree,
    layers: Sequence[LayerBlocks],
    order: Sequence[int],
    block_size: int,
    comparer: ContentComparer,
) -> ImagePlan:
    """Plan an image.

    Args:
        tree: the content of the image.
        layers: the blocks of all layers.
        order: the numbers of the layers, in their order in the image.
        block_size: the size of a data block, in bytes.
        comparer: the comparison of content where fingerprints or block words are equal.
    """
    files = live_files(tree, order)
    plan = ImagePlan(layers, _deduplicate_tails(layers, files, comparer))
    _place_tails(plan, order, block_size)
    _place_data(plan, tree, block_size, files, comparer)
    return plan


def _deduplicate_tails(
    layers: Sequence[LayerBlocks], files: Sequence[Origin], comparer: ContentComparer
) -> list[array[TailRef]]:
    """Return for each tail ID of a live file the tail-end to store: the first of equal ones."""
    seen, tails = Fingerprints(), array("Q")
    stored = [array("Q", [NO_TAIL]) * len(blocks.fingerprints) for blocks in layers]
    for origin in files:
        layer = layer_of(origin)
        blocks = layers[layer]
        tail_id = blocks.tail_id(entry_of(origin))
        if tail_id == NO_TAIL_ID or stored[layer][tail_id] != NO_TAIL:
            continue
        choice = own = tail_ref(layer, tail_id)
        fingerprint = blocks.fingerprints[tail_id]
        number = seen.find(fingerprint)
        if number < 0:
            seen.add(fingerprint)
            tails.append(own)
        elif comparer.same_tails(tails[number], own):
            choice = tails[number]
        stored[layer][tail_id] = choice
    return stored


def _place_tails(plan: ImagePlan, order: Sequence[int], block_size: int) -> None:
    """Keep the fragment blocks without dead tail-ends, and repack the live tail-ends of the others."""
    is_live = [bytearray(len(stored)) for stored in plan.stored_tails]
    for tail in chain.from_iterable(plan.stored_tails):
        if tail != NO_TAIL:
            is_live[layer_of(tail)][tail_id_of(tail)] = 1
    to_repack = array("Q")
    plan.fragment_indexes = [array("I") for _ in plan.layers]
    plan.fragment_offsets = [blocks.tail_offsets[:] for blocks in plan.layers]
    for layer in order:
        blocks, live = plan.layers[layer], is_live[layer]
        partly_dead = {fragment for fragment, keep in zip(blocks.tail_fragments, live, strict=True) if not keep}
        indexes = {}
        for fragment in sorted(set(blocks.tail_fragments)):
            indexes[fragment] = len(plan.kept_fragments)  # `_repack` corrects it for partly dead blocks
            if fragment not in partly_dead:
                plan.kept_fragments.append((layer, fragment))
                _extend(plan.fragment_extents, layer, *blocks.fragments.extent(fragment))
        plan.fragment_indexes[layer].extend(map(indexes.__getitem__, blocks.tail_fragments))
        if partly_dead:
            tails = enumerate(zip(blocks.tail_fragments, live, strict=True), tail_ref(layer, 0))
            to_repack.extend(tail for tail, (fragment, keep) in tails if keep and fragment in partly_dead)
    _repack(plan, block_size, to_repack)


def _repack(plan: ImagePlan, block_size: int, tails: Sequence[TailRef]) -> None:
    """Pack tail-ends into new fragment blocks."""
    room = 0
    for tail in tails:
        layer, tail_id = layer_of(tail), tail_id_of(tail)
        length = plan.layers[layer].tail_lengths[tail_id]
        if length > room:
            plan.repacked.append(array("Q"))
            room = block_size
        plan.fragment_indexes[layer][tail_id] = len(plan.kept_fragments) + len(plan.repacked) - 1
        plan.fragment_offsets[layer][tail_id] = block_size - room
        plan.repacked[-1].append(tail)
        room -= length


def _place_data(
    plan: ImagePlan, tree: Tree, block_size: int, files: Sequence[Origin], comparer: ContentComparer
) -> None:
    """Place the data blocks of the files one after the other; files with equal blocks share them."""
    layers = plan.layers
    blocks = {origin: found for origin in files if (found := file_blocks(tree, layers, origin, block_size)).total}
    equal = _equal_blocks(layers, blocks, comparer)
    _count_duplicates(plan, tree, files, blocks, equal)
    for origin, found in blocks.items():
        first = equal.get(origin, origin)
        if first != origin:
            plan.data_starts[origin] = plan.data_starts[first]
            continue
        layer = layer_of(origin)
        start, stop = layers[layer].data.extent(found.first, found.total)
        plan.data_starts[origin] = plan.data_size
        if stop > start:
            _extend(plan.data_extents, layer, start, stop)
            plan.data_size += stop - start


def _count_duplicates(
    plan: ImagePlan,
    tree: Tree,
    files: Sequence[Origin],
    blocks: dict[Origin, FileBlocks],
    equal: dict[Origin, Origin],
) -> None:
    """Count the files whose data blocks and tail-end equal those of an earlier file."""
    seen: set[tuple[Origin, TailRef]] = set()
    seen_tails = [bytearray(len(stored)) for stored in plan.stored_tails]  # of files without data blocks
    for origin in files:
        tail = plan.tail(origin)
        if origin in blocks:
            identity = equal.get(origin, origin), tail
            is_duplicate = identity in seen
            seen.add(identity)
        else:
            flags, tail_id = seen_tails[layer_of(tail)], tail_id_of(tail)
            is_duplicate = bool(flags[tail_id])
            flags[tail_id] = 1
        if is_duplicate:
            plan.duplicates += 1
            plan.duplicate_bytes += tree.indexes[layer_of(origin)].sizes[entry_of(origin)]


def _equal_blocks(
    layers: Sequence[LayerBlocks], blocks: dict[Origin, FileBlocks], comparer: ContentComparer
) -> dict[Origin, Origin]:
    """Return for each file whose data blocks equal those of an earlier file the first such file."""
    candidates: dict[bytes, list[tuple[Origin, FileBlocks]]] = {}
    for origin, found in blocks.items():
        words = layers[layer_of(origin)].data.words[found.first : found.first + found.total]
        candidates.setdefault(words.tobytes(), []).append((origin, found))
    equal = {}
    for group in candidates.values():
        if len(group) > 1:
            for first, *others in comparer.same_blocks(group):
                equal.update(dict.fromkeys(others, first))
    return equal


def _extend(extents: list[BlockExtent], layer: int, start: int, stop: int) -> None:
    """Append an extent, merged with the last one where it follows that directly."""
    if extents and extents[-1].layer == layer and extents[-1].stop == start:
        start = extents.pop().start
    extents.append(BlockExtent(layer, start, stop))
