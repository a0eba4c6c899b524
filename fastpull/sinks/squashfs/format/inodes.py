"""Inodes as in the inode table: basic where all values fit, else extended.

Spec: squashfs-tools-ng doc/format.adoc, Inode Table. The choice of the form is that of ``mksquashfs``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from fastpull.sinks.squashfs.format.superblock import (
    BLOCK,
    CHAR,
    DIRECTORY,
    EXTENDED,
    FIFO,
    FILE,
    MAX_TARGET,
    MAX_U32,
    METADATA_SIZE,
    NO_FRAGMENT,
    NO_XATTRS,
    SYMLINK,
    Unstorable,
)

if TYPE_CHECKING:
    from fastpull.sinks.squashfs.format.directories import IndexEntry

MAX_MAJOR = 0xFFF
MAX_MINOR = 0xFFFFF

_HEADER = "<4H2I"
_DIRECTORY = struct.Struct(_HEADER + "2I2HI")
_DIRECTORY_EXTENDED = struct.Struct(_HEADER + "4I2HI")
_DIRECTORY_INDEX = struct.Struct("<3I")
_FILE = struct.Struct(_HEADER + "4I")
_FILE_EXTENDED = struct.Struct(_HEADER + "3Q4I")
_SYMLINK = struct.Struct(_HEADER + "2I")
_DEVICE = struct.Struct(_HEADER + "2I")
_DEVICE_EXTENDED = struct.Struct(_HEADER + "3I")
_FIFO = struct.Struct(_HEADER + "I")
_FIFO_EXTENDED = struct.Struct(_HEADER + "2I")
_XATTR = struct.Struct("<I")


class InodeHeader(NamedTuple):
    """The header of every inode, behind its type.

    Attributes:
        mode: the permission bits with setuid, setgid and sticky.
        uid, gid: the positions of the IDs in the ID table.
        mtime: the time in seconds since the epoch, from 0 to 2**32 - 1.
        number: the inode number, from 1.
    """

    mode: int
    uid: int
    gid: int
    mtime: int
    number: int


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The position of a file's payload in the image.

    Attributes:
        start: the absolute offset of the first data block in the image; 0 if there is none.
        words: one little-endian block word of 32 bits for each data block; 0 for a hole.
        fragment: the index of the tail-end's block in the fragment table, or `NO_FRAGMENT`.
        fragment_offset: the offset of the tail-end in that uncompressed block, in bytes.
        sparse: the number of bytes in holes.
    """

    start: int
    words: bytes
    fragment: int = NO_FRAGMENT
    fragment_offset: int = 0
    sparse: int = 0


def file_inode(header: InodeHeader, nlink: int, size: int, layout: FileLayout, xattrs: int = NO_XATTRS) -> bytes:
    """Return the inode of a file; extended for hard links, xattrs, holes, or a size or start beyond 32 bits."""
    start, sparse = layout.start, layout.sparse
    if nlink > 1 or sparse or xattrs != NO_XATTRS or start > MAX_U32 or size > MAX_U32:
        fixed = _FILE_EXTENDED.pack(
            FILE + EXTENDED,
            *header,
            start,
            size,
            sparse and min(sparse, size - 1),  # as mksquashfs: at least one byte is not sparse
            nlink,
            layout.fragment,
            layout.fragment_offset,
            xattrs,
        )
    else:
        fixed = _FILE.pack(FILE, *header, start, layout.fragment, layout.fragment_offset, size)
    return fixed + layout.words


def directory_inode(
    header: InodeHeader,
    nlink: int,
    listing: tuple[int, int],
    size: int,
    entries: int,
    index: Sequence[IndexEntry],
    parent: int,
    xattrs: int = NO_XATTRS,
) -> bytes:
    """Return the inode of a directory; extended if it has xattrs or a long listing.

    Args:
        header: the inode header.
        nlink: the number of subdirectories, and 2.
        listing: the position of its listing in the directory table: block and offset.
        size: the size of the listing, in bytes.
        entries: the number of names in the listing.
        index: the index of the listing.
        parent: the inode number of the parent; for the root an unused number.
        xattrs: the number of its set in the xattr table, or `NO_XATTRS`.
    """
    block, offset = listing
    size_field = size + 3  # readers count "." and "..", which are not stored
    if xattrs == NO_XATTRS and entries <= 256 and size < METADATA_SIZE:
        return _DIRECTORY.pack(DIRECTORY, *header, block, nlink, size_field, offset, parent)
    index = index[:0xFFFF]  # the count has 16 bits; names behind the last entry are only slower to find
    fixed = _DIRECTORY_EXTENDED.pack(
        DIRECTORY + EXTENDED, *header, nlink, size_field, block, parent, len(index), offset, xattrs
    )
    rows = (_DIRECTORY_INDEX.pack(entry.offset, entry.block, len(entry.name) - 1) + entry.name for entry in index)
    return fixed + b"".join(rows)


def symlink_inode(header: InodeHeader, nlink: int, target: bytes, xattrs: int = NO_XATTRS) -> bytes:
    """Return the inode of a symbolic link; its xattrs, if any, follow its target.

    Raises:
        Unstorable: the target is empty or too long.
    """
    if not 0 < len(target) <= MAX_TARGET:
        raise Unstorable(f"the target of a symbolic link has {len(target)} bytes, not 1 to {MAX_TARGET}")
    if xattrs == NO_XATTRS:
        return _SYMLINK.pack(SYMLINK, *header, nlink, len(target)) + target
    return _SYMLINK.pack(SYMLINK + EXTENDED, *header, nlink, len(target)) + target + _XATTR.pack(xattrs)


def device_inode(header: InodeHeader, nlink: int, is_block: bool, number: int, xattrs: int = NO_XATTRS) -> bytes:
    """Return the inode of a block or character device; ``number`` is from `device_number`."""
    kind = BLOCK if is_block else CHAR
    if xattrs == NO_XATTRS:
        return _DEVICE.pack(kind, *header, nlink, number)
    return _DEVICE_EXTENDED.pack(kind + EXTENDED, *header, nlink, number, xattrs)


def fifo_inode(header: InodeHeader, nlink: int, xattrs: int = NO_XATTRS) -> bytes:
    """Return the inode of a fifo."""
    if xattrs == NO_XATTRS:
        return _FIFO.pack(FIFO, *header, nlink)
    return _FIFO_EXTENDED.pack(FIFO + EXTENDED, *header, nlink, xattrs)


def device_number(major: int, minor: int) -> int:
    """Return the device number in the encoding of Linux.

    Raises:
        Unstorable: the major or minor number is too large.
    """
    if major > MAX_MAJOR or minor > MAX_MINOR:
        raise Unstorable(f"the device number {major}:{minor} exceeds {MAX_MAJOR}:{MAX_MINOR}")
    return major << 8 | minor & 0xFF | (minor & ~0xFF) << 12
