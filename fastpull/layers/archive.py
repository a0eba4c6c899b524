"""Writing tar archives: entries as headers, in the pax format where ustar does not suffice.

The same entries always give the same bytes. Spec: POSIX.1-2017 pax, ustar Interchange Format.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastpull.layers.entry import Entry, EntryType

BLOCK = 512
END = bytes(2 * BLOCK)
"""What ends an archive."""

_FLAGS = {
    EntryType.FILE: b"0",
    EntryType.HARDLINK: b"1",
    EntryType.SYMLINK: b"2",
    EntryType.CHAR: b"3",
    EntryType.BLOCK: b"4",
    EntryType.DIRECTORY: b"5",
    EntryType.FIFO: b"6",
}


def header_of(entry: Entry) -> bytes:
    """The header of an entry, with a pax header before it where a field does not fit; payload is to follow."""
    path = entry.path + b"/" if entry.type is EntryType.DIRECTORY else entry.path
    records = [(b"SCHILY.xattr." + name, value) for name, value in entry.xattrs]
    for key, name in ((b"path", path), (b"linkpath", entry.linkname)):
        if len(name) > 100:
            records.append((key, name))
    for key, number, digits in ((b"uid", entry.uid, 7), (b"gid", entry.gid, 7), (b"size", entry.size, 11)):
        if number >= 8**digits:
            records.append((key, b"%d" % number))
    if not 0 <= entry.mtime < 8**11:
        records.append((b"mtime", b"%d" % entry.mtime))
    extended = b"".join(_record(key, value) for key, value in sorted(records))
    before = _ustar(b"PaxHeaders/entry", b"x", size=len(extended)) + padded(extended) if extended else b""
    return before + _ustar(
        path or b"./",
        _FLAGS[entry.type],
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        size=entry.size,
        mtime=entry.mtime,
        link=entry.linkname,
        device=entry.device,
    )


def padded(payload: bytes) -> bytes:
    """Payload, and zeros up to the next block."""
    return payload + bytes(-len(payload) % BLOCK)


def archive(entries: Iterable[tuple[Entry, bytes]]) -> bytes:
    """A whole archive in memory, of entries with their payload."""
    return b"".join(header_of(entry) + padded(payload) for entry, payload in entries) + END


def _record(key: bytes, value: bytes) -> bytes:
    body = b" %s=%s\n" % (key, value)
    length = len(body)
    while len(b"%d" % length) + len(body) != length:
        length = len(b"%d" % length) + len(body)
    return b"%d" % length + body


def _ustar(
    path: bytes,
    flag: bytes,
    *,
    mode: int = 0o644,
    uid: int = 0,
    gid: int = 0,
    size: int = 0,
    mtime: int = 0,
    link: bytes = b"",
    device: tuple[int, int] = (0, 0),
) -> bytes:
    """One header block; what does not fit is cut, or zero, because a pax record says it."""
    fields = (
        path[:100].ljust(100, b"\0"),
        _octal(mode, 8),
        _octal(uid, 8),
        _octal(gid, 8),
        _octal(size, 12),
        _octal(mtime, 12),
        b" " * 8,
        flag,
        link[:100].ljust(100, b"\0"),
        b"ustar\x0000",
        bytes(64),
        _octal(device[0], 8),
        _octal(device[1], 8),
        bytes(167),
    )
    block = b"".join(fields)
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def _octal(number: int, width: int) -> bytes:
    return b"%0*o\0" % (width - 1, number if 0 <= number < 8 ** (width - 1) else 0)
