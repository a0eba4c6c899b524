"""The journal of a partial blob: the ranges written, with their fingerprints.

A file of records of 32 bytes, each four little-endian 64-bit integers: offset, length, the XXH3-64 fingerprint of the
range, and the fingerprint of those three. A record is appended after its range is written. So a killed process leaves
at worst a missing or torn record at the end, and the fingerprints detect the damage of a power cut.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import xxhash

from fastpull.concurrency.writes import pwrite_all

if TYPE_CHECKING:
    from fastpull.cache.directory import CacheDirectory

_FIELDS = struct.Struct("<QQQ")
_RECORD = struct.Struct("<QQQQ")

RECORD_SIZE = _RECORD.size
"""Size of a record, in bytes."""

DATA, JOURNAL = "data", "journal"
"""Names of the two files in the directory of a partial blob."""

_MAX_SIZE = 64 << 20  # enough for a terabyte


@dataclass(frozen=True, slots=True)
class Record:
    """One range of the data file.

    Attributes:
        offset, length: position of the range, in bytes.
        fingerprint: XXH3-64 of the range.
    """

    offset: int
    length: int
    fingerprint: int

    def to_bytes(self) -> bytes:
        """Return the record as stored in the file."""
        fields = _FIELDS.pack(self.offset, self.length, self.fingerprint)
        return fields + xxhash.xxh3_64_intdigest(fields).to_bytes(8, "little")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Parse a record; return None if it is damaged."""
        *fields, check = _RECORD.unpack(data)
        if xxhash.xxh3_64_intdigest(data[: _FIELDS.size]) != check:
            return None
        return cls(*fields)


def replace_records(directory: CacheDirectory, records: list[Record], mode: int) -> None:
    """Rewrite a journal atomically.

    Args:
        directory: directory of the partial blob.
        records: records of the new journal.
        mode: mode of the new journal.
    """
    draft = f"{JOURNAL}.new"
    directory.remove(draft)  # left by a dead process, perhaps of another user
    fd = directory.create(draft, os.O_WRONLY)
    try:
        os.fchmod(fd, mode)
        pwrite_all(fd, 0, [record.to_bytes() for record in records])
    finally:
        os.close(fd)
    directory.rename(draft, directory, JOURNAL)


def read_records(directory: CacheDirectory, size: int) -> list[Record]:
    """Read the journal of a partial blob as `parse_records` does; return no records if it is missing."""
    found = directory.read(JOURNAL, _MAX_SIZE)
    return parse_records(found[0], size) if found is not None else []


def parse_records(content: bytes, size: int) -> list[Record]:
    """Return the sound records of a journal within a blob of ``size`` bytes, by offset.

    Overlapping records are dropped: no range is written twice, and a forged journal must not cause repeated reads.
    """
    cut = len(content) - len(content) % _RECORD.size
    found = (Record.from_bytes(content[at : at + _RECORD.size]) for at in range(0, cut, _RECORD.size))
    within = [record for record in found if record and record.length and record.offset + record.length <= size]
    records, stop = list[Record](), 0
    for record in sorted(within, key=lambda record: record.offset):
        if record.offset >= stop:
            records.append(record)
            stop = record.offset + record.length
    return records


def matches(fd: int, record: Record, buffer: bytearray) -> bool:
    """Return whether a data file still matches a record; ``buffer`` is scratch space."""
    hasher, at, end = xxhash.xxh3_64(), record.offset, record.offset + record.length
    view = memoryview(buffer)
    while at < end:
        got = os.preadv(fd, [view[: min(len(view), end - at)]], at)
        if not got:
            return False
        hasher.update(view[:got])
        at += got
    return hasher.intdigest() == record.fingerprint
