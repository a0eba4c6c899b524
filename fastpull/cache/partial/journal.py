"""The journal of a partial blob: which ranges of it are written, and what they hash to.

A file of records of 32 bytes, each four little-endian 64-bit integers: offset, length, the XXH3-64 fingerprint of the
range, and the fingerprint of those three. A record is appended after its range was written, so that a killed process
leaves nothing worse than a missing or torn record at the end. What a power cut leaves is found by the fingerprints.
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
"""Of each record, in bytes."""

DATA, JOURNAL = "data", "journal"
"""Names of the two files in a partial blob's directory."""

_MAX_SIZE = 64 << 20  # ranges of a terabyte


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


def replace_records(directory: CacheDirectory, records: list[Record], mode: int) -> None:
    """Write a journal anew: after a death it is the old one or the new one.

    Args:
        directory: of the partial blob.
        records: of the new journal.
        mode: permissions of the new journal.
    """
    draft = f"{JOURNAL}.new"
    directory.remove(draft)  # a dead process's, perhaps another user's
    fd = directory.create(draft, os.O_WRONLY)
    try:
        os.fchmod(fd, mode)
        pwrite_all(fd, 0, [record.to_bytes() for record in records])
    finally:
        os.close(fd)
    directory.rename(draft, directory, JOURNAL)


def read_records(directory: CacheDirectory, size: int) -> list[Record]:
    """Read the records of a partial blob's journal as `parse_records` does; none where there is no journal."""
    found = directory.read(JOURNAL, _MAX_SIZE)
    return parse_records(found[0], size) if found is not None else []


def parse_records(content: bytes, size: int) -> list[Record]:
    """Return the sound records of a journal that lie within a blob of ``size`` bytes, by offset.

    No two of them overlap: no range is written twice, and a forged journal must not have one read again and again.
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
