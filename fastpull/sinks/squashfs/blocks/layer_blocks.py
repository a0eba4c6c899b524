"""The compressed squashfs blocks of one layer, made before the merged tree decides which of them the image needs.

They depend on the layer, the compressor and the block size alone. Other layers, the position in the image and the size
of the chunks in which the layer arrives have no influence on them.
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
_SIZE_MASK = RAW - 1  # the bits of a block word that hold the size on disk


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """The options that determine, together with the layer, the bytes of its blocks.

    Attributes:
        compressor: the compressor of the blocks.
        block_size: the size of a data block, in bytes.
        fragments: whether tail-ends and small files share fragment blocks.
    """

    compressor: Compressor
    block_size: int
    fragments: bool


@dataclass(slots=True)
class BlockFile:
    """Consecutive compressed blocks in a file, or at the end of one.

    Attributes:
        fd: the file descriptor.
        end: the offset behind the last block; before the first `append`, the offset of the first block.
        is_image: whether this is the file of the image itself.
        words: the block word of each block, as in an inode: size on disk, with a bit for raw; 0 for a hole.
        starts: the offset of each block.
        on_append: called with the new end after each `append`, on the appending thread.
    """

    fd: int
    end: int = 0
    is_image: bool = False
    words: array[int] = field(default_factory=lambda: array("I"))
    starts: array[int] = field(default_factory=lambda: array("Q"))
    on_append: Callable[[int], None] = lambda _: None

    def append(self, words: array[int], pieces: list[bytes | memoryview]) -> None:
        """Write blocks behind the existing ones.

        Args:
            words: the block word of each new block.
            pieces: the bytes of each new block that is not a hole.

        Raises:
            OSError: the filesystem cannot store them.
        """
        start = self.end
        self.end = pwrite_all(self.fd, start, pieces)
        if self.is_image:
            start_writeback(self.fd, start, self.end - start)
        self.starts.extend(accumulate((word & _SIZE_MASK for word in words[:-1]), initial=start))
        self.words.extend(words)  # last: other threads take its length as the number of readable blocks
        self.on_append(self.end)

    def extent(self, first: int, count: int = 1) -> tuple[int, int]:
        """Return the start and end offset of consecutive blocks."""
        last = first + count - 1
        return self.starts[first], self.starts[last] + (self.words[last] & _SIZE_MASK)

    def read(self, number: int, decompress: Decompress, block_size: int) -> bytes:
        """Return the uncompressed content of a block.

        Raises:
            OSError: the file cannot be read.
        """
        start, stop = self.extent(number)
        content = os.pread(self.fd, stop - start, start)
        return content if self.words[number] & RAW else decompress(content, block_size)


@dataclass(slots=True)
class LayerBlocks:
    """The blocks of one layer, and the position of each entry's payload in them.

    A *tail-end* is the last, partial block of a file; it is packed into a fragment block. Equal tail-ends of a layer
    are stored once and have one tail ID, a number from 0.

    Attributes:
        data: the data blocks, in the order of the layer's entries.
        fragments: the fragment blocks.
        first_blocks: the number of the first data block of each entry.
        tail_ids: the tail ID of each entry, or `NO_TAIL_ID`; may have fewer items than the layer has entries.
        tail_fragments: the number of the fragment block of each tail ID.
        tail_offsets: the offset of each tail ID in its uncompressed fragment block.
        tail_lengths: the size of each tail ID, in bytes.
        fingerprints: the XXH3-128 fingerprint of each tail ID.
    """

    data: BlockFile
    fragments: BlockFile
    first_blocks: array[int] = field(default_factory=lambda: array("Q"))
    tail_ids: array[int] = field(default_factory=lambda: array("I"))
    tail_fragments: array[int] = field(default_factory=lambda: array("I"))
    tail_offsets: array[int] = field(default_factory=lambda: array("I"))
    tail_lengths: array[int] = field(default_factory=lambda: array("I"))
    fingerprints: Fingerprints = field(default_factory=Fingerprints)

    def tail_id(self, entry: int) -> int:
        """Return the tail ID of an entry, or `NO_TAIL_ID`."""
        return self.tail_ids[entry] if entry < len(self.tail_ids) else NO_TAIL_ID

    def tail(self, tail_id: int, fragment: bytes | bytearray) -> memoryview:
        """Return the content of a tail-end from its uncompressed fragment block."""
        start = self.tail_offsets[tail_id]
        return memoryview(fragment)[start : start + self.tail_lengths[tail_id]]

    def read_file(self, entry: int, size: int, block_format: BlockFormat) -> bytes:
        """Return the content of a file.

        Args:
            entry: the number of the file's entry in the layer.
            size: the size of the file, in bytes.
            block_format: the format of these blocks.

        Raises:
            OSError: a block cannot be read.
        """
        decompress, block_size = block_format.compressor.decompress_metadata, block_format.block_size
        tail_id, pieces = self.tail_id(entry), []
        whole, rest = divmod(size, block_size)
        for number in range(whole + (tail_id == NO_TAIL_ID and rest > 0)):
            block = self.first_blocks[entry] + number
            if self.data.words[block]:
                pieces.append(self.data.read(block, decompress, block_size))
            else:  # a hole
                pieces.append(bytes(min(block_size, size - number * block_size)))
        if tail_id != NO_TAIL_ID:
            fragment = self.fragments.read(self.tail_fragments[tail_id], decompress, block_size)
            pieces.append(bytes(self.tail(tail_id, fragment)))
        return b"".join(pieces)
