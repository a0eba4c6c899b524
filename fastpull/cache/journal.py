"""The journal of a partial blob: which ranges of it are written, and what they hash to.

A file of records of 32 bytes, each four little-endian 64-bit integers: offset, length, the XXH3-64 fingerprint of the
range, and the fingerprint of those three. A record is appended after its range was written, so that a killed process
leaves nothing worse than a missing or torn record at the end. What a power cut leaves is found by the fingerprints.
"""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass
from typing import Self

import xxhash

_FIELDS = struct.Struct("<QQQ")
_RECORD = struct.Struct("<QQQQ")

RECORD_SIZE = _RECORD.size
"""Of each record, in bytes."""


@dataclass(frozen=True, slots=True)
class Record:
    """One range of the data file.

    Attributes:
        offset, length: in bytes.
        fingerprint: XXH3-64 of the range.
    """

    offset: int
    length: int
    fingerprint: int

    def to_bytes(self) -> bytes:
        """The record as it stands in the file."""
        fields = _FIELDS.pack(self.offset, self.length, self.fingerprint)
        return fields + xxhash.xxh3_64_intdigest(fields).to_bytes(8, "little")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Reads a record; None for one that is not as it was written."""
        *fields, check = _RECORD.unpack(data)
        if xxhash.xxh3_64_intdigest(data[: _FIELDS.size]) != check:
            return None
        return cls(*fields)


def replace_records(path: str, records: list[Record]) -> None:
    """Writes a journal anew: after a death it is the old one or the new one."""
    draft = f"{path}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)  # a dead process's, perhaps another user's
    with open(draft, "wb") as file:
        os.fchmod(file.fileno(), os.stat(path).st_mode & 0o777)
        file.write(b"".join(record.to_bytes() for record in records))
    os.rename(draft, path)


def read_records(path: str, size: int) -> list[Record]:
    """Reads the sound records of a journal that lie within a blob of ``size`` bytes; none where there is no file."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError:
        return []
    cut = len(content) - len(content) % _RECORD.size
    found = (Record.from_bytes(content[at : at + _RECORD.size]) for at in range(0, cut, _RECORD.size))
    return [record for record in found if record and record.length and record.offset + record.length <= size]


def holds(fd: int, record: Record, buffer: bytearray) -> bool:
    """Whether a data file still holds what a record says; ``buffer`` is scratch space."""
    hasher, at, end = xxhash.xxh3_64(), record.offset, record.offset + record.length
    view = memoryview(buffer)
    while at < end:
        got = os.preadv(fd, [view[: min(len(view), end - at)]], at)
        if not got:
            return False
        hasher.update(view[:got])
        at += got
    return hasher.intdigest() == record.fingerprint
