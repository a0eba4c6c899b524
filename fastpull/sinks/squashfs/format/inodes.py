"""Inodes as they stand in the inode table, basic where that holds all and extended where it does not.

Spec: squashfs-tools-ng doc/format.adoc, Inode Table; which form is taken is as in ``mksquashfs``.
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

_COMMON = "<4H2I"
_DIRECTORY = struct.Struct(_COMMON + "2I2HI")
_DIRECTORY_EXTENDED = struct.Struct(_COMMON + "4I2HI")
_DIRECTORY_INDEX = struct.Struct("<3I")
_FILE = struct.Struct(_COMMON + "4I")
_FILE_EXTENDED = struct.Struct(_COMMON + "3Q4I")
_SYMLINK = struct.Struct(_COMMON + "2I")
_DEVICE = struct.Struct(_COMMON + "2I")
_DEVICE_EXTENDED = struct.Struct(_COMMON + "3I")
_FIFO = struct.Struct(_COMMON + "I")
_FIFO_EXTENDED = struct.Struct(_COMMON + "2I")
_XATTR = struct.Struct("<I")


class Common(NamedTuple):
    """What every inode begins with, after its type.

    Attributes:
        mode: permission bits with setuid, setgid and sticky.
        uid, gid: positions in the id table.
        mtime: seconds since the epoch, from 0 to 2**32 - 1.
        number: of the inode, from 1.
    """

    mode: int
    uid: int
    gid: int
    mtime: int
    number: int


@dataclass(frozen=True, slots=True)
class FileLayout:
    """Where the payload of a file is in the image.

    Attributes:
        start: absolute offset of the first data block in the image; 0 if there is none.
        words: one little-endian word of 32 bits for each data block; 0 for a hole.
        fragment: position in the fragment table of the block that holds the tail, if one does.
        fragment_offset: of the tail in that block once it is expanded, in bytes.
        sparse: bytes that are holes.
    """

    start: int
    words: bytes
    fragment: int = NO_FRAGMENT
    fragment_offset: int = 0
    sparse: int = 0


def file_inode(common: Common, nlink: int, size: int, layout: FileLayout, xattrs: int = NO_XATTRS) -> bytes:
    """A file; extended if it has several names, xattrs or holes, or if its size or place needs more than 32 bits."""
    start, sparse = layout.start, layout.sparse
    if nlink > 1 or sparse or xattrs != NO_XATTRS or start > MAX_U32 or size > MAX_U32:
        fixed = _FILE_EXTENDED.pack(
            FILE + EXTENDED,
            *common,
            start,
            size,
            sparse and min(sparse, size - 1),  # as mksquashfs: a file of nothing but holes is not all sparse
            nlink,
            layout.fragment,
            layout.fragment_offset,
            xattrs,
        )
    else:
        fixed = _FILE.pack(FILE, *common, start, layout.fragment, layout.fragment_offset, size)
    return fixed + layout.words


def directory_inode(
    common: Common,
    nlink: int,
    listing: tuple[int, int],
    size: int,
    entries: int,
    index: Sequence[IndexEntry],
    parent: int,
    xattrs: int = NO_XATTRS,
) -> bytes:
    """A directory; extended if it has xattrs or if its listing is long.

    Args:
        common: see there.
        nlink: directories in it, and 2.
        listing: where its listing begins in the directory table.
        size: of the listing, in bytes.
        entries: names in the listing.
        index: into the listing.
        parent: inode number of the directory it is in; of the root one that is not used.
        xattrs: number of its set.
    """
    block, offset = listing
    size_field = size + 3  # readers count two names, "." and "..", that are not stored
    if xattrs == NO_XATTRS and entries <= 256 and size < METADATA_SIZE:
        return _DIRECTORY.pack(DIRECTORY, *common, block, nlink, size_field, offset, parent)
    index = index[:0xFFFF]  # what does not fit in the count is only slower to find
    fixed = _DIRECTORY_EXTENDED.pack(
        DIRECTORY + EXTENDED, *common, nlink, size_field, block, parent, len(index), offset, xattrs
    )
    rows = (_DIRECTORY_INDEX.pack(entry.offset, entry.block, len(entry.name) - 1) + entry.name for entry in index)
    return fixed + b"".join(rows)


def symlink_inode(common: Common, nlink: int, target: bytes, xattrs: int = NO_XATTRS) -> bytes:
    """A symbolic link; its xattrs, if any, come after its target.

    Raises:
        Unstorable: the target is too long, or there is none.
    """
    if not 0 < len(target) <= MAX_TARGET:
        raise Unstorable(f"the target of a symbolic link has {len(target)} bytes, not 1 to {MAX_TARGET}")
    if xattrs == NO_XATTRS:
        return _SYMLINK.pack(SYMLINK, *common, nlink, len(target)) + target
    return _SYMLINK.pack(SYMLINK + EXTENDED, *common, nlink, len(target)) + target + _XATTR.pack(xattrs)


def device_inode(common: Common, nlink: int, is_block: bool, number: int, xattrs: int = NO_XATTRS) -> bytes:
    """A block or character device; ``number`` is from `device_number`."""
    kind = BLOCK if is_block else CHAR
    if xattrs == NO_XATTRS:
        return _DEVICE.pack(kind, *common, nlink, number)
    return _DEVICE_EXTENDED.pack(kind + EXTENDED, *common, nlink, number, xattrs)


def fifo_inode(common: Common, nlink: int, xattrs: int = NO_XATTRS) -> bytes:
    """A fifo."""
    if xattrs == NO_XATTRS:
        return _FIFO.pack(FIFO, *common, nlink)
    return _FIFO_EXTENDED.pack(FIFO + EXTENDED, *common, nlink, xattrs)


def device_number(major: int, minor: int) -> int:
    """A device as one number, as Linux encodes it.

    Raises:
        Unstorable: one of the two is too large.
    """
    if major > MAX_MAJOR or minor > MAX_MINOR:
        raise Unstorable(f"the numbers of a device, {major}:{minor}, are beyond {MAX_MAJOR}:{MAX_MINOR}")
    return major << 8 | minor & 0xFF | (minor & ~0xFF) << 12
