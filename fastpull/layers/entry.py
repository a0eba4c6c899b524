"""Entries of a layer, as in its tar."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class EntryType(IntEnum):
    """The type of an entry; ``native/entries.pxi`` has the same numbers."""

    FILE = 0
    HARDLINK = 1
    SYMLINK = 2
    CHAR = 3
    BLOCK = 4
    DIRECTORY = 5
    FIFO = 6


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a layer.

    Attributes:
        path: path within the root, without leading or trailing slash; empty for the root.
        type: type of the entry.
        mode: permission bits with setuid, setgid and sticky, at most 0o7777.
        uid, gid: owner and group.
        mtime: seconds since the epoch; may be negative.
        size: size of a file in bytes, including holes; 0 for other types.
        linkname: target of a symbolic link, unchanged; path within the root of the target of a hard link.
        device: major and minor number of a device.
        xattrs: name and value of each extended attribute.
    """

    path: bytes
    type: EntryType
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    size: int = 0
    linkname: bytes = b""
    device: tuple[int, int] = (0, 0)
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
