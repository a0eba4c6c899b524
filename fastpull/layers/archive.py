"""Writing tar archives: ustar headers, with pax headers where a value does not fit.

Equal entries give equal bytes. Spec: POSIX.1-2017 pax, ustar Interchange Format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from fastpull.layers.entry import Entry, EntryType

BLOCK = 512
_MAX_NAME, _MAX_PREFIX = 100, 155
END = bytes(2 * BLOCK)
"""The end of an archive."""

# name, mode, uid, gid, size, mtime, checksum, typeflag, linkname, magic and version, devices, prefix
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s8s64x8s8s155s12x")

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
    """Return the header of an entry, after a pax header if a value does not fit. The payload must follow."""
    path = entry.path + b"/" if entry.type is EntryType.DIRECTORY else entry.path
    path = path if entry.path else b"./"
    link = entry.linkname
    prefix, name = _split(path)
    records = [(b"SCHILY.xattr." + key, value) for key, value in entry.xattrs]
    if len(name) > _MAX_NAME:
        records.append((b"path", path))
    if len(link) > _MAX_NAME:
        records.append((b"linkpath", link))
    for key, number, digits in ((b"uid", entry.uid, 7), (b"gid", entry.gid, 7), (b"size", entry.size, 11)):
        if number >= 8**digits:
            records.append((key, b"%d" % number))
    if not 0 <= entry.mtime < 8**11:
        records.append((b"mtime", b"%d" % entry.mtime))
    header = _ustar(
        name,
        _FLAGS[entry.type],
        mode=entry.mode,
        uid=entry.uid,
        gid=entry.gid,
        size=entry.size,
        mtime=entry.mtime,
        link=link,
        device=entry.device,
        prefix=prefix,
    )
    if not records:
        return header
    extended = b"".join(_record(key, value) for key, value in sorted(records))
    return _ustar(b"PaxHeaders/entry", b"x", size=len(extended)) + padded(extended) + header


def padded(payload: bytes) -> bytes:
    """Return the payload, padded with zeros to whole blocks."""
    return payload + padding_of(len(payload))


def padding_of(size: int) -> bytes:
    """Return the zeros that pad a payload to whole blocks."""
    return bytes(-size % BLOCK)


def archive(entries: Iterable[tuple[Entry, bytes]]) -> bytes:
    """Return an archive of entries with their payload."""
    return b"".join(header_of(entry) + padded(payload) for entry, payload in entries) + END


def _split(path: bytes) -> tuple[bytes, bytes]:
    """Return a path as prefix and name, with the shortest possible prefix; an empty prefix if none is possible."""
    if len(path) <= _MAX_NAME:
        return b"", path
    cut = path.find(b"/", len(path) - _MAX_NAME - 1, len(path) - 1)
    if not 0 < cut <= _MAX_PREFIX:
        return b"", path
    return path[:cut], path[cut + 1 :]


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
    prefix: bytes = b"",
) -> bytes:
    """Return a header block. A value that does not fit is cut or zero, because a pax record holds it."""
    block = _HEADER.pack(
        path[:_MAX_NAME],
        b"%07o" % mode,
        b"%07o" % (uid if uid < 8**7 else 0),
        b"%07o" % (gid if gid < 8**7 else 0),
        b"%011o" % (size if size < 8**11 else 0),
        b"%011o" % (mtime if 0 <= mtime < 8**11 else 0),
        b" " * 8,
        flag,
        link[:_MAX_NAME],
        b"ustar\x0000",
        b"%07o" % device[0],
        b"%07o" % device[1],
        prefix,
    )
    return b"%b%06o\0 %b" % (block[:148], sum(block), block[156:])
