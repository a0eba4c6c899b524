"""The fields of tar headers: numbers, names, checksums."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from fastpull.layers.entry import EntryType
from fastpull.layers.faults import Fault

if TYPE_CHECKING:
    from fastpull.native.pure.pax import _Extended

_BLOCK = 512
_MAX_ID = (1 << 32) - 2
_MAX_INT64 = (1 << 63) - 1
_MAX_TARGET = 4095
_TYPES = {
    b"0": EntryType.FILE,
    b"7": EntryType.FILE,
    b"S": EntryType.FILE,
    b"1": EntryType.HARDLINK,
    b"2": EntryType.SYMLINK,
    b"3": EntryType.CHAR,
    b"4": EntryType.BLOCK,
    b"5": EntryType.DIRECTORY,
    b"6": EntryType.FIFO,
}
_TIMES_AND_IDS = (b"uid", b"gid", b"mtime")
_NUMBERS = ((100, 108), (108, 116), (116, 124), (136, 148), (329, 337), (337, 345))  # of a header, beside its size


class _Bad(Exception):
    def __init__(self, fault: Fault, culprit: bytes = b"") -> None:
        self.fault = fault
        self.culprit = culprit


# --- fields


def _names(header: bytes, known: _Extended) -> tuple[bytes, bytes]:
    """The path of an entry and the target of a link."""
    pax = known.pax or {}
    own, own_link = known.long_path or _path_of(header), known.long_link or _text(header[157:257])
    for key, long in ((b"path", known.long_path), (b"linkpath", known.long_link)):
        if long is not None and pax.get(key, long) != long:
            raise _Bad(Fault.NAMES_DIFFER, own)
    path = dict(known.sparse).get(b"name", pax.get(b"path", own))
    return path, pax.get(b"linkpath", own_link)


def _text(field_: bytes) -> bytes:
    return field_.split(b"\0", 1)[0]


def _path_of(header: bytes) -> bytes:
    name = _text(header[:100])
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _number(field_: bytes) -> int:
    if field_[0] & 0x80:
        if field_[0] not in (0x80, 0xFF):
            raise _Bad(Fault.NUMBER)
        value = int.from_bytes(field_[1:], "big") - (1 << 8 * len(field_[1:]) if field_[0] == 0xFF else 0)
        if not -_MAX_INT64 - 1 <= value <= _MAX_INT64:
            raise _Bad(Fault.NUMBER)
        return value
    digits = _text(field_.lstrip(b" ")).rstrip(b" ")
    if digits.strip(b"01234567") or len(digits.lstrip(b"0")) > 21:
        raise _Bad(Fault.NUMBER)
    value = int(digits or b"0", 8)
    if value > _MAX_INT64:
        raise _Bad(Fault.NUMBER)
    return value


def _decimal(text: bytes) -> int:
    if not text or text.strip(b"0123456789"):
        raise _Bad(Fault.PAX_RECORD)
    digits = text.lstrip(b"0")
    value = int(digits or b"0") if len(digits) < 20 else _MAX_INT64 + 1
    if value > _MAX_INT64:
        raise _Bad(Fault.NUMBER)
    return value


def _seconds(text: bytes) -> int:
    whole, _, fraction = text.removeprefix(b"-").partition(b".")
    value = _decimal(whole)
    if fraction.strip(b"0123456789"):
        raise _Bad(Fault.PAX_RECORD)
    if text.startswith(b"-"):
        return -value - (1 if fraction.strip(b"0") else 0)
    return value


def _checksum_fits(header: bytes) -> bool:
    try:
        said = _number(header[148:156])
    except _Bad:
        return False
    summed = header[:148] + b" " * 8 + header[156:]
    return said in (sum(summed), sum(struct.unpack("512b", summed)))


def _long_name(body: bytes) -> bytes:
    name, _, rest = body.partition(b"\0")
    if rest.strip(b"\0"):
        raise _Bad(Fault.NUL_IN_NAME)
    if not name:
        raise _Bad(Fault.EMPTY_PATH)
    return name


def _normalised(path: bytes) -> bytes:
    if b"\0" in path:
        raise _Bad(Fault.NUL_IN_NAME)
    parts: list[bytes] = []
    for part in path.split(b"/"):
        if part == b"..":
            if not parts:
                raise _Bad(Fault.PATH_ESCAPES)
            parts.pop()
        elif part not in (b"", b"."):
            if len(part.removeprefix(b".wh.")) > 255:
                raise _Bad(Fault.NAME_LENGTH)
            parts.append(part)
            if len(parts) > 255:
                raise _Bad(Fault.PATH_DEPTH)
    return b"/".join(parts)


def _link_of(kind: EntryType, link: bytes) -> bytes:
    if kind not in (EntryType.HARDLINK, EntryType.SYMLINK):
        return b""
    if not link:
        raise _Bad(Fault.EMPTY_LINK)
    if b"\0" in link:
        raise _Bad(Fault.NUL_IN_NAME)
    if kind is EntryType.HARDLINK:
        return _normalised(link)
    if len(link) > _MAX_TARGET:
        raise _Bad(Fault.TARGET_LENGTH)
    return link
