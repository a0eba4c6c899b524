"""Fields of tar headers: numbers, names, checksums; the counterpart of ``native/fields.pxi``."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from fastpull.layers.entry import EntryType
from fastpull.layers.faults import Fault

if TYPE_CHECKING:
    from fastpull.native.pure.pax import Extended

BLOCK = 512
MAX_ID = (1 << 32) - 2
MAX_INT64 = (1 << 63) - 1
MAX_TARGET = 4095
ENTRY_TYPES = {
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
TIMES_AND_IDS = (b"uid", b"gid", b"mtime")
NUMBER_FIELDS = ((100, 108), (108, 116), (116, 124), (136, 148), (329, 337), (337, 345))  # of a header, beside its size


class ScanFault(Exception):
    """A fault of the archive; `culprit` is the name at fault."""

    def __init__(self, fault: Fault, culprit: bytes = b"") -> None:
        self.fault = fault
        self.culprit = culprit


def choose_names(header: bytes, known: Extended) -> tuple[bytes, bytes]:
    """Return the path of an entry and the target of a link."""
    pax = known.pax or {}
    own, own_link = known.long_path or header_path(header), known.long_link or field_text(header[157:257])
    for key, long in ((b"path", known.long_path), (b"linkpath", known.long_link)):
        if long is not None and pax.get(key, long) != long:
            raise ScanFault(Fault.NAMES_DIFFER, own)
    path = dict(known.sparse).get(b"name", pax.get(b"path", own))
    return path, pax.get(b"linkpath", own_link)


def field_text(field_: bytes) -> bytes:
    """Return the string of a header field, up to its first NUL."""
    return field_.split(b"\0", 1)[0]


def header_path(header: bytes) -> bytes:
    """Return the path that a header itself names."""
    name = field_text(header[:100])
    prefix = field_text(header[345:500]) if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def parse_number(field_: bytes) -> int:
    """Parse a number of a header: octal digits, or base 256."""
    if field_[0] & 0x80:
        if field_[0] not in (0x80, 0xFF):
            raise ScanFault(Fault.NUMBER)
        value = int.from_bytes(field_[1:], "big") - (1 << 8 * len(field_[1:]) if field_[0] == 0xFF else 0)
        if not -MAX_INT64 - 1 <= value <= MAX_INT64:
            raise ScanFault(Fault.NUMBER)
        return value
    digits = field_text(field_.lstrip(b" ")).rstrip(b" ")
    if digits.strip(b"01234567") or len(digits.lstrip(b"0")) > 21:
        raise ScanFault(Fault.NUMBER)
    value = int(digits or b"0", 8)
    if value > MAX_INT64:
        raise ScanFault(Fault.NUMBER)
    return value


def parse_decimal(text: bytes) -> int:
    """Parse a number of a pax record: decimal digits and nothing else."""
    if not text or text.strip(b"0123456789"):
        raise ScanFault(Fault.PAX_RECORD)
    digits = text.lstrip(b"0")
    value = int(digits or b"0") if len(digits) < 20 else MAX_INT64 + 1
    if value > MAX_INT64:
        raise ScanFault(Fault.NUMBER)
    return value


def parse_seconds(text: bytes) -> int:
    """Parse a time of a pax record, rounded down to whole seconds."""
    whole, _, fraction = text.removeprefix(b"-").partition(b".")
    value = parse_decimal(whole)
    if fraction.strip(b"0123456789"):
        raise ScanFault(Fault.PAX_RECORD)
    if text.startswith(b"-"):
        return -value - (1 if fraction.strip(b"0") else 0)
    return value


def checksum_fits(header: bytes) -> bool:
    """Return whether the checksum of a header is right, by unsigned or by signed bytes."""
    try:
        said = parse_number(header[148:156])
    except ScanFault:
        return False
    summed = header[:148] + b" " * 8 + header[156:]
    return said in (sum(summed), sum(struct.unpack("512b", summed)))


def parse_long_name(body: bytes) -> bytes:
    """Return the name in the body of a GNU long name or long link header."""
    name, _, rest = body.partition(b"\0")
    if rest.strip(b"\0"):
        raise ScanFault(Fault.NUL_IN_NAME)
    if not name:
        raise ScanFault(Fault.EMPTY_PATH)
    return name


def normalised(path: bytes) -> bytes:
    """Return a path without leading, trailing and double slashes, ``.`` and ``..``."""
    if b"\0" in path:
        raise ScanFault(Fault.NUL_IN_NAME)
    parts: list[bytes] = []
    for part in path.split(b"/"):
        if part == b"..":
            if not parts:
                raise ScanFault(Fault.PATH_ESCAPES)
            parts.pop()
        elif part not in (b"", b"."):
            if len(part.removeprefix(b".wh.")) > 255:
                raise ScanFault(Fault.NAME_LENGTH)
            parts.append(part)
            if len(parts) > 255:
                raise ScanFault(Fault.PATH_DEPTH)
    return b"/".join(parts)


def link_target(kind: EntryType, link: bytes) -> bytes:
    """Return the checked target of a link; nothing for an entry of another type."""
    if kind not in (EntryType.HARDLINK, EntryType.SYMLINK):
        return b""
    if not link:
        raise ScanFault(Fault.EMPTY_LINK)
    if b"\0" in link:
        raise ScanFault(Fault.NUL_IN_NAME)
    if kind is EntryType.HARDLINK:
        return normalised(link)
    if len(link) > MAX_TARGET:
        raise ScanFault(Fault.TARGET_LENGTH)
    return link
