"""The listing of a directory: names in runs, each run behind a header.

Spec: squashfs-tools-ng doc/format.adoc, Directory Table; where runs end and index entries stand as in ``mksquashfs``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from fastpull.sinks.squashfs.format.superblock import METADATA_SIZE

_HEADER = struct.Struct("<3I")
_ENTRY = struct.Struct("<HhHH")
_MAX_RUN = 256


class DirectoryEntry(NamedTuple):
    """A name in a directory.

    Attributes:
        name: of at most 255 bytes.
        block, offset: where its inode is in the inode table.
        number: of its inode.
        type: the basic one of its inode.
    """

    name: bytes
    block: int
    offset: int
    number: int
    type: int


class IndexPoint(NamedTuple):
    """A header in a listing from which a search may begin: its offset in the listing, and the first name after it."""

    offset: int
    name: bytes


class IndexEntry(NamedTuple):
    """An index point, and the block of the directory table that its header is in."""

    offset: int
    block: int
    name: bytes


def listing(entries: Iterable[DirectoryEntry]) -> tuple[bytes, list[IndexPoint]]:
    """The listing of a directory, and points about every 8 KiB in it.

    Args:
        entries: in the order of the bytes of their names; others would be listed, but not found.
    """
    content, points, pack = bytearray(), [], _ENTRY.pack
    header = count = base = last_point = 0
    run_block = -1
    for name, block, offset, number, kind in entries:
        is_far = len(content) + _ENTRY.size + len(name) - last_point > METADATA_SIZE
        if block != run_block or count == _MAX_RUN or is_far or not -0x8000 <= number - base <= 0x7FFF:
            if count:
                _HEADER.pack_into(content, header, count - 1, run_block, base)
            if is_far:
                last_point = len(content)
                points.append(IndexPoint(last_point, name))
            header, count, base, run_block = len(content), 0, number, block
            content += bytes(_HEADER.size)
        content += pack(offset, number - base, kind, len(name) - 1)
        content += name
        count += 1
    if count:
        _HEADER.pack_into(content, header, count - 1, run_block, base)
    return bytes(content), points
