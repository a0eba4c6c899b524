"""Pax extended headers; the counterpart of ``native/pax.pxi``."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastpull.layers.faults import Fault
from fastpull.native.pure.fields import TIMES_AND_IDS, ScanFault, parse_decimal, parse_seconds

MAX_EXTENSION = 1 << 20
_MAX_XATTR_NAME = 255
_MAX_XATTRS = 65536


@dataclass(slots=True)
class Extended:
    """What extended headers say of the next entry."""

    pax: dict[bytes, bytes] | None = None
    sparse: list[tuple[bytes, bytes]] = field(default_factory=list)
    xattrs: list[tuple[bytes, bytes]] = field(default_factory=list)
    long_path: bytes | None = None
    long_link: bytes | None = None

    @property
    def pending(self) -> bool:
        """Whether an extended header waits for its entry."""
        return self.pax is not None or self.long_path is not None or self.long_link is not None


def check_xattrs(xattrs: list[tuple[bytes, bytes]]) -> None:
    """Refuse extended attributes that the kernel would refuse."""
    total = 0
    for name, value in xattrs:
        if len(name) > _MAX_XATTR_NAME:
            raise ScanFault(Fault.XATTR_NAME)
        total += len(name) + len(value)
        if total > _MAX_XATTRS:
            raise ScanFault(Fault.XATTR_SIZE)


def parse_pax(body: bytes, into: dict[bytes, bytes], known: Extended | None) -> None:
    """Read the records of an x header, or of a g header where ``known`` is None."""
    at = 0
    while at < len(body):
        digits, space, _ = body[at : at + 8].partition(b" ")
        if not space or not digits or digits.strip(b"0123456789"):
            raise ScanFault(Fault.PAX_RECORD)
        length = int(digits)
        record = body[at : at + length]
        at += length
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if len(record) < max(length, len(digits) + 4) or record[-1:] != b"\n" or not key or not equals or b"\0" in key:
            raise ScanFault(Fault.PAX_RECORD)
        if key in TIMES_AND_IDS:
            if value:
                parse_seconds(value) if key == b"mtime" else parse_decimal(value)
            into[key] = value
        elif key in (b"path", b"linkpath", b"size") or key.startswith((b"SCHILY.xattr.", b"GNU.sparse.")):
            if known is None:
                raise ScanFault(Fault.PAX_GLOBAL)
            _local_record(key, value, into, known)
    if known is not None:
        offsets = sum(key == b"offset" for key, _ in known.sparse)
        if offsets != sum(key == b"numbytes" for key, _ in known.sparse):
            raise ScanFault(Fault.SPARSE)


def _local_record(key: bytes, value: bytes, into: dict[bytes, bytes], known: Extended) -> None:
    if key.startswith(b"SCHILY.xattr."):
        name = key.removeprefix(b"SCHILY.xattr.")
        if not name:
            raise ScanFault(Fault.PAX_RECORD)
        known.xattrs.append((name, value))
    elif key.startswith(b"GNU.sparse."):
        _sparse_record(key.removeprefix(b"GNU.sparse."), value, known.sparse)
    else:
        if key == b"size":
            parse_decimal(value)
        elif b"\0" in value:
            raise ScanFault(Fault.NUL_IN_NAME)
        into[key] = value


def _sparse_record(key: bytes, value: bytes, sparse: list[tuple[bytes, bytes]]) -> None:
    if key == b"name":
        if not value or b"\0" in value:
            raise ScanFault(Fault.SPARSE)
    elif key == b"map":
        numbers = value.split(b",") if value else []
        if len(numbers) % 2 or any(k in (b"map", b"offset") for k, _ in sparse):
            raise ScanFault(Fault.SPARSE)
        for number in numbers:
            parse_sparse_number(number)
    elif key in (b"major", b"minor", b"size", b"realsize", b"numblocks", b"offset", b"numbytes"):
        parse_sparse_number(value)
        last = [k for k, _ in sparse if k in (b"offset", b"numbytes")][-1:] or [b"numbytes"]
        if key == b"offset" and (last == [b"offset"] or any(k == b"map" for k, _ in sparse)):
            raise ScanFault(Fault.SPARSE)
        if key == b"numbytes" and last != [b"offset"]:
            raise ScanFault(Fault.SPARSE)
    else:
        raise ScanFault(Fault.SPARSE)
    sparse.append((key, value))


def parse_sparse_number(text: bytes) -> int:
    """Parse a number of a sparse record."""
    try:
        return parse_decimal(text)
    except ScanFault:
        raise ScanFault(Fault.SPARSE) from None
