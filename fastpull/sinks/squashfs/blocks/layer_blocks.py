"""Runs: the payload of one layer as compressed squashfs blocks, before anybody knows which of it will live.

A run does not know where it will be in an image, nor what other layers hold, and does not depend on how its layer was
cut into chunks: its bytes are a function of the layer, the compressor and the block size.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from fastpull.concurrency.writes import pwrite_all
from fastpull.native import Fingerprints, start_writeback
from fastpull.sinks.squashfs.format.superblock import RAW

if TYPE_CHECKING:
    from fastpull.sinks.squashfs.blocks.compressors import Compressor

Decompress: TypeAlias = Callable[[bytes, int], bytes]

NO_TAIL_ID = 0xFFFFFFFF
_SIZE = RAW - 1  # the part of a block's word that is its size on the disk


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """What decides, with the layer, on the bytes of a run.

    Attributes:
        compressor: of the blocks.
        block_size: in bytes.
        fragments: whether tails and small files share blocks.
    """

    compressor: Compressor
    block_size: int
    fragments: bool


@dataclass(slots=True)
class BlockFile:
    """A file, or the end of one, of compressed blocks, one after the other.

    Attributes:
        fd: of the file.
        end: of the blocks in the file; to begin with, where the first one is to be.
        is_image: whether the file is that of the image itself.
        words: for each block its word as it stands in an inode: size on the disk, with a bit for raw; 0 for a hole.
        starts: where each block begins.
        on_grown: told where the blocks end, whenever there are more; on the thread that appends.
    """

    fd: int
    end: int = 0
    is_image: bool = False
    words: array[int] = field(default_factory=lambda: array("I"))
    starts: array[int] = field(default_factory=lambda: array("Q"))
    on_grown: Callable[[int], None] = lambda _: None

    def append(self, words: array[int], pieces: list[bytes | memoryview]) -> None:
        """Writes blocks behind the others.

        Raises:
            OSError: the filesystem refuses.
        """
        start = self.end
        self.end = pwrite_all(self.fd, start, pieces)
        if self.is_image:
            start_writeback(self.fd, start, self.end - start)
        self.starts.extend(accumulate((word & _SIZE for word in words[:-1]), initial=start))
        self.words.extend(words)  # after that: another thread may look how many blocks can be read
        self.on_grown(self.end)

    def extent(self, first: int, count: int = 1) -> tuple[int, int]:
        """Where consecutive blocks begin and end."""
        last = first + count - 1
        return self.starts[first], self.starts[last] + (self.words[last] & _SIZE)

    def read(self, number: int, decompress: Decompress, block_size: int) -> bytes:
        """The content of a block.

        Raises:
            OSError: it cannot be read.
        """
        start, stop = self.extent(number)
        content = os.pread(self.fd, stop - start, start)
        return content if self.words[number] & RAW else decompress(content, block_size)


@dataclass(slots=True)
class LayerBlocks:
    """The result for one layer.

    A *slot* is a tail that is in a fragment block; tails of a layer that are equal share one.

    Attributes:
        blocks: of whole blocks, in the order of the layer's entries.
        fragments: of fragment blocks.
        firsts: for each entry the number of its first block.
        slots: for each entry the slot of its tail, or `NO_TAIL_ID`; may be shorter than the layer.
        slot_fragments, slot_offsets, slot_lengths: of each slot.
        fingerprints: XXH3-128 of each slot.
    """

    blocks: BlockFile
    fragments: BlockFile
    firsts: array[int] = field(default_factory=lambda: array("Q"))
    slots: array[int] = field(default_factory=lambda: array("I"))
    slot_fragments: array[int] = field(default_factory=lambda: array("I"))
    slot_offsets: array[int] = field(default_factory=lambda: array("I"))
    slot_lengths: array[int] = field(default_factory=lambda: array("I"))
    fingerprints: Fingerprints = field(default_factory=Fingerprints)

    def slot(self, entry: int) -> int:
        """The slot of an entry's tail, or `NO_TAIL_ID`."""
        return self.slots[entry] if entry < len(self.slots) else NO_TAIL_ID

    def content(self, entry: int, size: int, form: BlockFormat) -> bytes:
        """The content of a file.

        Args:
            entry: the file.
            size: of it, in bytes.
            form: of the run.

        Raises:
            OSError: it cannot be read.
        """
        decompress, block_size = form.compressor.decompress_metadata, form.block_size
        slot, pieces = self.slot(entry), []
        whole, rest = divmod(size, block_size)
        for number in range(whole + (slot == NO_TAIL_ID and rest > 0)):
            block = self.firsts[entry] + number
            if self.blocks.words[block]:
                pieces.append(self.blocks.read(block, decompress, block_size))
            else:  # a hole
                pieces.append(bytes(min(block_size, size - number * block_size)))
        if slot != NO_TAIL_ID:
            fragment = self.fragments.read(self.slot_fragments[slot], decompress, block_size)
            pieces.append(bytes(self.tail(slot, fragment)))
        return b"".join(pieces)

    def tail(self, slot: int, fragment: bytes | bytearray) -> memoryview:
        """The content of a slot, given that of its fragment block."""
        start = self.slot_offsets[slot]
        return memoryview(fragment)[start : start + self.slot_lengths[slot]]
