"""Runs as files: what has to be known of a run, as bytes that stand behind its fragment blocks.

A run is two files then, which another process can take over without looking at the layer:

::

    blocks:   the blocks of files
    rest:     the fragment blocks │ magic │ a line of JSON │ columns │ the layer's index │ footer: where the magic is

Both are a function of the layer and of the `BlockFormat`. That the bytes are as they were is for the caller to know;
what they say of each other is checked here.
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
_FINGERPRINT = 16
_MAX_HEAD = 64 << 10
_COLUMNS = (
    # name, type code
    ("block_words", "I"),
    ("fragment_words", "I"),
    ("firsts", "Q"),
    ("slots", "I"),
    ("slot_fragments", "I"),
    ("slot_offsets", "I"),
    ("slot_lengths", "I"),
)


def pack_run(run: LayerBlocks, index: LayerIndex, form: BlockFormat) -> list[bytes]:
    """What is to stand behind the fragment blocks of a run that is complete."""
    columns = [
        run.blocks.words,
        run.fragments.words,
        run.firsts,
        run.slots,
        run.slot_fragments,
        run.slot_offsets,
        run.slot_lengths,
    ]
    packed = [column.tobytes() for column in columns]
    packed.append(b"".join(run.fingerprints[slot] for slot in range(len(run.fingerprints))))
    packed.append(index.to_bytes())
    head = {**_form_facts(form), "fragments_end": run.fragments.end, "sizes": list(map(len, packed))}
    pieces = [_MAGIC, json.dumps(head).encode() + b"\n", *packed]
    return [*pieces, _FOOTER.pack(run.fragments.end, _FOOTER_MAGIC)]


def unpack_run(run: LayerBlocks, blocks_size: int, rest_size: int, form: BlockFormat, subject: str) -> LayerIndex:
    """Fills a run whose files are there.

    Args:
        run: with its regions, where nothing is known of their blocks.
        blocks_size: bytes of blocks behind where the region of blocks begins.
        rest_size: bytes of the other file.
        form: that the run has to have.
        subject: the layer, for messages.

    Returns:
        The index of the layer.

    Raises:
        RunDamaged: the files do not say what a run says.
        OSError: they cannot be read.
    """
    try:
        return _unpack(run, blocks_size, rest_size, form)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise LayerBlocksDamaged(subject, str(error) or repr(error)) from error


def _unpack(run: LayerBlocks, blocks_size: int, rest_size: int, form: BlockFormat) -> LayerIndex:
    fd, stop = run.fragments.fd, rest_size - _FOOTER.size
    if stop < len(_MAGIC):
        raise ValueError(f"{rest_size} bytes are too few")
    start, magic = _FOOTER.unpack(_read(fd, stop, rest_size))
    if magic != _FOOTER_MAGIC or not 0 <= start <= stop - len(_MAGIC):
        raise ValueError("it has no footer of this version")
    front = _read(fd, start, min(stop, start + _MAX_HEAD))
    if not front.startswith(_MAGIC):
        raise ValueError("it is of another version")
    end = front.index(b"\n", len(_MAGIC))
    head = json.loads(front[len(_MAGIC) : end])
    expected = _form_facts(form)
    if any(head[name] != value for name, value in expected.items()) or head["fragments_end"] != start:
        raise ValueError("it was made otherwise than this image")
    sizes, at = head["sizes"], start + end + 1
    if at + sum(sizes) != stop or min(sizes) < 0 or len(sizes) != len(_COLUMNS) + 2:
        raise ValueError("it has other columns")
    ends = list(accumulate(sizes, initial=at))
    parts = (_read(fd, low, high) for low, high in pairwise(ends))  # one at a time: they may be large
    columns: dict[str, array[Any]] = {}
    for name, code in _COLUMNS:
        columns[name] = array(code)
        columns[name].frombytes(next(parts))
    fingerprints = _fingerprints(next(parts))
    index = LayerIndex.from_bytes(next(parts))
    index.check()
    _place(run.blocks, columns["block_words"], blocks_size)
    _place(run.fragments, columns["fragment_words"], start)
    run.firsts, run.slots = columns["firsts"], columns["slots"]
    run.slot_fragments, run.slot_offsets = columns["slot_fragments"], columns["slot_offsets"]
    run.slot_lengths = columns["slot_lengths"]
    run.fingerprints = fingerprints
    _check(run, index, form.block_size)
    return index


def _form_facts(form: BlockFormat) -> dict[str, Any]:
    return {
        "byte_order": sys.byteorder,
        "compression": str(form.compressor),
        "codecs": form.compressor.versions(),
        "block_size": form.block_size,
        "fragments": form.fragments,
    }


def _read(fd: int, start: int, stop: int) -> bytes:
    pieces = []
    while start < stop:
        piece = os.pread(fd, stop - start, start)
        if not piece:
            raise ValueError("the file is shorter than it should be")
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


def _place(region: BlockFile, words: array[int], size: int) -> None:
    """Says where the blocks of a region are, of which nothing was known."""
    sizes = [word & (RAW - 1) for word in words]
    if sum(sizes) != size or any(word > 2 * RAW - 1 for word in words):
        raise ValueError(f"blocks of {sum(sizes)} bytes in {size}")
    region.starts = array("Q", accumulate(sizes[:-1], initial=region.end)) if sizes else array("Q")
    region.words = words
    region.end += size


def _fingerprints(content: bytes) -> Fingerprints:
    if len(content) % _FINGERPRINT:
        raise ValueError("a fingerprint is cut off")
    found = Fingerprints()
    for at in range(0, len(content), _FINGERPRINT):
        found.add(content[at : at + _FINGERPRINT])
    return found


def _check(run: LayerBlocks, index: LayerIndex, block_size: int) -> None:
    """Makes sure that what a plan looks up is there."""
    count = len(run.fingerprints)
    if not count == len(run.slot_fragments) == len(run.slot_offsets) == len(run.slot_lengths):
        raise ValueError("the columns of its slots have different lengths")
    if max(run.slot_fragments, default=-1) >= len(run.fragments.words):
        raise ValueError("a slot is in a fragment block that is not there")
    if any(start + size > block_size for start, size in zip(run.slot_offsets, run.slot_lengths, strict=True)):
        raise ValueError("a slot ends behind its fragment block")
    if any(slot >= count for slot in run.slots if slot != NO_TAIL_ID):
        raise ValueError("an entry has a slot that is not there")
    if len(run.slots) > len(index):
        raise ValueError("it has tails of more entries than there are")
    firsts, total = run.firsts, len(run.blocks.words)
    for entry, (kind, size) in enumerate(zip(index.types, index.sizes, strict=True)):
        if kind != EntryType.FILE or not size:
            continue
        whole, rest = divmod(size, block_size)
        slot = run.slot(entry)
        if slot != NO_TAIL_ID and run.slot_lengths[slot] != rest:
            raise ValueError(f"the tail of entry {entry} has another length")
        blocks = whole + (slot == NO_TAIL_ID and rest > 0)
        if blocks and (entry >= len(firsts) or firsts[entry] + blocks > total):
            raise ValueError(f"entry {entry} has blocks that are not there")
