"""The layout of a squashfs 4.0 image, its constants and its superblock.

::

    superblock            96 bytes, written last
    compressor options    one raw metadata block; only with flag 0x400
    data                  data blocks and fragment blocks, in any order; gaps are allowed
    inode table           metadata blocks; the root directory is last, so that ``mksquashfs`` can append
    directory table       metadata blocks; one listing for each directory
    fragment table        metadata blocks with rows of 16 bytes, then the offsets of these blocks
    id table              metadata blocks with 4 bytes for each uid or gid, then the offsets of these blocks
    xattr tables          names and values, then rows of sets, then a header and the offsets of the rows' blocks
    padding               to a multiple of 4096, which loop devices need

All numbers are little-endian and nothing is aligned. Readers take the start of a table as the end of the one before, so
there is no gap between tables. There is no export table: it is optional, and only NFS servers use it.

Spec: squashfs-tools-ng doc/format.adoc, Overview and The Superblock.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

SUPERBLOCK_SIZE = 96
METADATA_SIZE = 8192
"""The uncompressed size of every metadata block except the last of its table."""

ALIGNMENT = 4096
"""The size of an image is padded to a multiple of this: a loop device drops an incomplete last sector or page."""

RAW = 1 << 24
"""The bit of a block word that marks a raw (uncompressed) block. A word of 0 is a hole."""

METADATA_RAW = 1 << 15
"""The bit of a metadata block's header that marks a raw block."""

NO_FRAGMENT = 0xFFFFFFFF
NO_XATTRS = 0xFFFFFFFF
NO_TABLE = 0xFFFFFFFFFFFFFFFF

MAX_U32 = 0xFFFFFFFF
MAX_NAME = 255
"""The limit of Linux for a name, in bytes; the format allows one more."""

MAX_TARGET = 65_535
"""The largest target of a symbolic link that readers accept, in bytes."""

MIN_BLOCK_SIZE = 4096
MAX_BLOCK_SIZE = 1 << 20

RAW_DATA = 0x2
NO_FRAGMENTS = 0x10
DEDUPLICATED = 0x40
HAS_OPTIONS = 0x400
"""Flags. Readers use only the last one; the others tell ``mksquashfs`` how to append."""

DIRECTORY, FILE, SYMLINK, BLOCK, CHAR, FIFO, SOCKET = range(1, 8)
"""Inode types. An extended inode adds `EXTENDED`; directory entries always have the basic type."""

EXTENDED = 7

_MAGIC = 0x73717368
_SUPERBLOCK = struct.Struct("<5I6H8Q")


class Unstorable(Exception):
    """The format cannot hold a value, which the message names. The inode table adds the path."""


def metadata_header(size: int, raw: bool) -> bytes:
    """Return the header of a metadata block."""
    return (size | METADATA_RAW if raw else size).to_bytes(2, "little")


@dataclass(frozen=True, slots=True)
class Superblock:
    """The superblock of an image.

    Attributes:
        inodes: the number of inodes; hard links count once.
        time: the time of the image, in seconds since the epoch.
        block_size: the size of data blocks, in bytes: a power of two from 4 KiB to 1 MiB.
        fragments: the number of rows of the fragment table.
        compressor: the number of the compressor.
        flags: the flags, see above.
        ids: the number of rows of the ID table.
        root: the reference to the root directory's inode, ``block << 16 | offset``.
        size: the size of the image in bytes, without its padding.
        id_start, xattr_start, fragment_start: the offsets of the tables' block lists; `NO_TABLE` without xattrs.
        inode_start, directory_start: the offsets of the tables.

    Raises:
        ValueError: from the constructor, for a block size that the format does not allow.

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
        """Return the bytes of the superblock."""
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
    """Check a block size.

    Raises:
        ValueError: the size is not a power of two, or out of range.
    """
    if not MIN_BLOCK_SIZE <= size <= MAX_BLOCK_SIZE or size & (size - 1):
        raise ValueError(f"block size {size}, expected a power of two from {MIN_BLOCK_SIZE} to {MAX_BLOCK_SIZE}")


def clamped(time: int) -> int:
    """Return the nearest time that the format can hold, from 1970 to 2106."""
    return min(max(time, 0), MAX_U32)
