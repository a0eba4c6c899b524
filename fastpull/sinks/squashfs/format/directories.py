"""Directory listings: groups of names, each group behind a header.

Spec: squashfs-tools-ng doc/format.adoc, Directory Table. Groups and index entries are laid out as by ``mksquashfs``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from fastpull.sinks.squashfs.format.superblock import METADATA_SIZE

_HEADER = struct.Struct("<3I")
_ENTRY = struct.Struct("<HhHH")
_MAX_GROUP = 256


class DirectoryEntry(NamedTuple):
    """A name in a directory.

    Attributes:
        name: the name, at most 255 bytes.
        block, offset: the position of the inode in the inode table.
        number: the inode number.
        type: the basic type of the inode.
    """

    name: bytes
    block: int
    offset: int
    number: int
    type: int


class IndexPoint(NamedTuple):
    """A group header at which a lookup may begin: its offset in the listing, and the first name behind it."""

    offset: int
    name: bytes


class IndexEntry(NamedTuple):
    """An index point, and the block of the directory table that contains its header."""

    offset: int
    block: int
    name: bytes


def pack_listing(entries: Iterable[DirectoryEntry]) -> tuple[bytes, list[IndexPoint]]:
    """Return the listing of a directory, and an index point about every 8 KiB.

    Args:
        entries: the entries, sorted by the bytes of their names. Readers do not find unsorted names.
    """
    content, points, pack = bytearray(), [], _ENTRY.pack
    header = count = base = last_point = 0
    group_block = -1
    for name, block, offset, number, kind in entries:
        is_far = len(content) + _ENTRY.size + len(name) - last_point > METADATA_SIZE
        if block != group_block or count == _MAX_GROUP or is_far or not -0x8000 <= number - base <= 0x7FFF:
            if count:
                _HEADER.pack_into(content, header, count - 1, group_block, base)
            if is_far:
                last_point = len(content)
                points.append(IndexPoint(last_point, name))
            header, count, base, group_block = len(content), 0, number, block
            content += bytes(_HEADER.size)
        content += pack(offset, number - base, kind, len(name) - 1)
        content += name
        count += 1
    if count:
        _HEADER.pack_into(content, header, count - 1, group_block, base)
    return bytes(content), points
