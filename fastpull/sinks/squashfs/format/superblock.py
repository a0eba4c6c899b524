"""The layout of a squashfs 4.0 image, its constants and its superblock.

::

    0   superblock            96 bytes, written last
        compressor options    one metadata block, stored raw; only where flag 0x400 says so
        data                  the blocks of files and the fragment blocks, in any order, with gaps if need be
        inode table           metadata blocks; of the root directory last, so that ``mksquashfs`` can append
        directory table       metadata blocks; for each directory its listing
        fragment table        metadata blocks of 16 bytes each, then where those blocks are
        id table              metadata blocks of 4 bytes for each uid or gid, then where those blocks are
        xattr tables          names and values, then sets of them, then a header and where the sets' blocks are
        padding               to a multiple of 4096, as loop devices need it

All numbers are little-endian and nothing is aligned. Readers find where a table ends by where the next one begins, so
nothing may stand between two of them. There is no export table: only NFS servers use it, and it is optional.

Spec: squashfs-tools-ng doc/format.adoc, Overview and The Superblock.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

SUPERBLOCK_SIZE = 96
METADATA_SIZE = 8192
"""Bytes that each metadata block expands to, save the last of its table."""

ALIGNMENT = 4096
"""An image is padded to a multiple of this: a loop device drops an incomplete last sector or page."""

RAW = 1 << 24
"""In the word of a data or fragment block: it is stored uncompressed. A word of 0 is a hole."""

METADATA_RAW = 1 << 15
"""In the header of a metadata block: it is stored uncompressed."""

NO_FRAGMENT = 0xFFFFFFFF
NO_XATTRS = 0xFFFFFFFF
NO_TABLE = 0xFFFFFFFFFFFFFFFF

MAX_U32 = 0xFFFFFFFF
MAX_NAME = 255
"""Bytes of a name: what Linux allows; the format has room for one more."""

MAX_TARGET = 65_535
"""Bytes of a symbolic link's target that readers accept."""

MIN_BLOCK_SIZE = 4096
MAX_BLOCK_SIZE = 1 << 20

RAW_DATA = 0x2
NO_FRAGMENTS = 0x10
DEDUPLICATED = 0x40
HAS_OPTIONS = 0x400
"""Flags. Of these only the last matters to readers; the others tell ``mksquashfs`` how to append."""

DIRECTORY, FILE, SYMLINK, BLOCK, CHAR, FIFO, SOCKET = range(1, 8)
"""Types of inodes; an extended inode has 7 more, but its name in a listing has these."""

EXTENDED = 7

_MAGIC = 0x73717368
_SUPERBLOCK = struct.Struct("<5I6H8Q")


class Unstorable(Exception):
    """The format has no room for something; the message says for what. It becomes an error with a path."""


def metadata_header(size: int, raw: bool) -> bytes:
    """What stands before a metadata block of a size."""
    return (size | METADATA_RAW if raw else size).to_bytes(2, "little")


@dataclass(frozen=True, slots=True)
class Superblock:
    """The head of an image.

    Attributes:
        inodes: how many there are; names of one inode count once.
        time: of the image, in seconds since the epoch.
        block_size: of data, in bytes; a power of two from 4 KiB to 1 MiB.
        fragments: how many entries the fragment table has.
        compressor: its number.
        flags: of those above.
        ids: how many uids and gids there are.
        root: reference of the root directory's inode, ``block << 16 | offset``.
        size: of the image, in bytes, without its padding.
        id_start, xattr_start, fragment_start: where the tables' lists of blocks begin; there may be no xattrs.
        inode_start, directory_start: where the tables begin.

    Raises:
        ValueError: from the constructor, for a block size that the format does not have.

    Spec: squashfs-tools-ng doc/format.adoc, The Superblock.
    """

    inodes: int
    time: int
    block_size: int
    fragments: int
    compressor: int
    flags: int
    ids: int
    root: int
    size: int
    id_start: int
    xattr_start: int
    inode_start: int
    directory_start: int
    fragment_start: int

    def __post_init__(self) -> None:
        check_block_size(self.block_size)

    def to_bytes(self) -> bytes:
        """The superblock as it stands at the beginning of the image."""
        return _SUPERBLOCK.pack(
            _MAGIC,
            self.inodes,
            self.time,
            self.block_size,
            self.fragments,
            self.compressor,
            self.block_size.bit_length() - 1,
            self.flags,
            self.ids,
            4,
            0,
            self.root,
            self.size,
            self.id_start,
            self.xattr_start,
            self.inode_start,
            self.directory_start,
            self.fragment_start,
            NO_TABLE,
        )


def check_block_size(size: int) -> None:
    """Refuses what cannot be a block size.

    Raises:
        ValueError: it is no power of two, or too small or too large.
    """
    if not MIN_BLOCK_SIZE <= size <= MAX_BLOCK_SIZE or size & (size - 1):
        raise ValueError(f"a block size is a power of two from {MIN_BLOCK_SIZE} to {MAX_BLOCK_SIZE}, not {size}")


def clamped(time: int) -> int:
    """The nearest time that the format can hold, from 1970 to 2106."""
    return min(max(time, 0), MAX_U32)
