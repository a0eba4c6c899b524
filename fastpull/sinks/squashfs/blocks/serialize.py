"""Layer blocks in two files, which another process can use without reading the layer.

::

    data file:      data blocks
    fragment file:  fragment blocks │ magic │ a line of JSON │ columns │ index of the layer │ footer: start of the magic

The bytes of both files are a function of the layer and of the `BlockFormat`. Loading checks that the files are
consistent with each other and with the format; the caller checks that their bytes are unchanged.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from array import array
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from fastpull.errors import LayerBlocksDamaged
from fastpull.layers.entry import EntryType
from fastpull.layers.index import LayerIndex
from fastpull.native import Fingerprints
from fastpull.sinks.squashfs.blocks.layer_blocks import NO_TAIL_ID, LayerBlocks
from fastpull.sinks.squashfs.format.superblock import RAW

if TYPE_CHECKING:
    from fastpull.sinks.squashfs.blocks.layer_blocks import BlockFile, BlockFormat

_MAGIC = b"fastpull run 1\n"
_FOOTER = struct.Struct("<Q8s")
_FOOTER_MAGIC = b"fprunend"
_FINGERPRINT_SIZE = 16
_MAX_HEADER = 64 << 10
_COLUMNS = (
    # name, type code
    ("data_words", "I"),
    ("fragment_words", "I"),
    ("first_blocks", "Q"),
    ("tail_ids", "I"),
    ("tail_fragments", "I"),
    ("tail_offsets", "I"),
    ("tail_lengths", "I"),
)


def serialize_layer_blocks(blocks: LayerBlocks, index: LayerIndex, block_format: BlockFormat) -> list[bytes]:
    """Return the bytes that follow the fragment blocks in the fragment file.

    Args:
        blocks: the blocks of a complete layer.
        index: the index of the layer.
        block_format: the format of the blocks.
    """
    columns = [
        blocks.data.words,
        blocks.fragments.words,
        blocks.first_blocks,
        blocks.tail_ids,
        blocks.tail_fragments,
        blocks.tail_offsets,
        blocks.tail_lengths,
    ]
    packed = [column.tobytes() for column in columns]
    packed.append(b"".join(blocks.fingerprints[tail_id] for tail_id in range(len(blocks.fingerprints))))
    packed.append(index.to_bytes())
    end = blocks.fragments.end
    header = {**_format_facts(block_format), "fragments_end": end, "sizes": list(map(len, packed))}
    return [_MAGIC, json.dumps(header).encode() + b"\n", *packed, _FOOTER.pack(end, _FOOTER_MAGIC)]


def load_layer_blocks(
    blocks: LayerBlocks, data_size: int, fragment_file_size: int, block_format: BlockFormat, subject: str
) -> LayerIndex:
    """Fill layer blocks from their two files.

    Args:
        blocks: the empty layer blocks, whose block files have the serialized content.
        data_size: the size of the data blocks, in bytes.
        fragment_file_size: the size of the fragment file, in bytes.
        block_format: the format that the blocks must have.
        subject: the layer, for messages.

    Returns:
        The index of the layer.

    Raises:
        LayerBlocksDamaged: the files are inconsistent, or have another format.
        OSError: the files cannot be read.
    """
    try:
        return _load(blocks, data_size, fragment_file_size, block_format)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise LayerBlocksDamaged(subject, str(error) or repr(error)) from error


def _load(blocks: LayerBlocks, data_size: int, fragment_file_size: int, block_format: BlockFormat) -> LayerIndex:
    fd, stop = blocks.fragments.fd, fragment_file_size - _FOOTER.size
    if stop < len(_MAGIC):
        raise ValueError(f"the fragment file has only {fragment_file_size} bytes")
    start, magic = _FOOTER.unpack(_read(fd, stop, fragment_file_size))
    if magic != _FOOTER_MAGIC or not 0 <= start <= stop - len(_MAGIC):
        raise ValueError("the fragment file has no footer of this version")
    front = _read(fd, start, min(stop, start + _MAX_HEADER))
    if not front.startswith(_MAGIC):
        raise ValueError("the fragment file has another version")
    header_end = front.index(b"\n", len(_MAGIC))
    header = json.loads(front[len(_MAGIC) : header_end])
    expected = _format_facts(block_format)
    if any(header[name] != value for name, value in expected.items()) or header["fragments_end"] != start:
        raise ValueError("the blocks have another format than this image")
    sizes, at = header["sizes"], start + header_end + 1
    if at + sum(sizes) != stop or min(sizes) < 0 or len(sizes) != len(_COLUMNS) + 2:
        raise ValueError("the fragment file has other columns")
    ends = list(accumulate(sizes, initial=at))
    parts = (_read(fd, low, high) for low, high in pairwise(ends))  # one at a time: they may be large
    columns: dict[str, array[Any]] = {}
    for name, code in _COLUMNS:
        columns[name] = array(code)
        columns[name].frombytes(next(parts))
    fingerprints = _fingerprints(next(parts))
    index = LayerIndex.from_bytes(next(parts))
    index.check()
    _fill(blocks.data, columns["data_words"], data_size)
    _fill(blocks.fragments, columns["fragment_words"], start)
    blocks.first_blocks, blocks.tail_ids = columns["first_blocks"], columns["tail_ids"]
    blocks.tail_fragments, blocks.tail_offsets = columns["tail_fragments"], columns["tail_offsets"]
    blocks.tail_lengths = columns["tail_lengths"]
    blocks.fingerprints = fingerprints
    _check(blocks, index, block_format.block_size)
    return index


def _format_facts(block_format: BlockFormat) -> dict[str, Any]:
    return {
        "byte_order": sys.byteorder,
        "compression": str(block_format.compressor),
        "codecs": block_format.compressor.versions(),
        "block_size": block_format.block_size,
        "fragments": block_format.fragments,
    }


def _read(fd: int, start: int, stop: int) -> bytes:
    pieces = []
    while start < stop:
        piece = os.pread(fd, stop - start, start)
        if not piece:
            raise ValueError("the file is shorter than its recorded size")
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


def _fill(block_file: BlockFile, words: array[int], size: int) -> None:
    """Record the blocks that an empty block file holds."""
    sizes = [word & (RAW - 1) for word in words]
    if sum(sizes) != size or any(word > 2 * RAW - 1 for word in words):
        raise ValueError(f"blocks of {sum(sizes)} bytes in total are recorded for {size} bytes")
    block_file.starts = array("Q", accumulate(sizes[:-1], initial=block_file.end)) if sizes else array("Q")
    block_file.words = words
    block_file.end += size


def _fingerprints(content: bytes) -> Fingerprints:
    if len(content) % _FINGERPRINT_SIZE:
        raise ValueError("the last fingerprint is incomplete")
    found = Fingerprints()
    for at in range(0, len(content), _FINGERPRINT_SIZE):
        found.add(content[at : at + _FINGERPRINT_SIZE])
    return found


def _check(blocks: LayerBlocks, index: LayerIndex, block_size: int) -> None:
    """Check that every position that a plan may look up exists."""
    count = len(blocks.fingerprints)
    if not count == len(blocks.tail_fragments) == len(blocks.tail_offsets) == len(blocks.tail_lengths):
        raise ValueError("the columns of tail-ends have different lengths")
    if max(blocks.tail_fragments, default=-1) >= len(blocks.fragments.words):
        raise ValueError("a tail-end is in a fragment block that does not exist")
    ends = (offset + length for offset, length in zip(blocks.tail_offsets, blocks.tail_lengths, strict=True))
    if any(end > block_size for end in ends):
        raise ValueError("a tail-end extends past its fragment block")
    if any(tail_id >= count for tail_id in blocks.tail_ids if tail_id != NO_TAIL_ID):
        raise ValueError("an entry has a tail ID that does not exist")
    if len(blocks.tail_ids) > len(index):
        raise ValueError("there are tail IDs for more entries than the layer has")
    first_blocks, total = blocks.first_blocks, len(blocks.data.words)
    for entry, (kind, size) in enumerate(zip(index.types, index.sizes, strict=True)):
        if kind != EntryType.FILE or not size:
            continue
        whole, rest = divmod(size, block_size)
        tail_id = blocks.tail_id(entry)
        if tail_id != NO_TAIL_ID and blocks.tail_lengths[tail_id] != rest:
            raise ValueError(f"the tail-end of entry {entry} has another length than the file requires")
        needed = whole + (tail_id == NO_TAIL_ID and rest > 0)
        if needed and (entry >= len(first_blocks) or first_blocks[entry] + needed > total):
            raise ValueError(f"entry {entry} has data blocks that do not exist")
