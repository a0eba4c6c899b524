"""Maps of sparse files; the counterpart of ``native/sparse.pxi``."""

from __future__ import annotations

from dataclasses import dataclass

from fastpull.layers.faults import Fault
from fastpull.native.pure.fields import BLOCK, ScanFault, parse_number
from fastpull.native.pure.pax import MAX_EXTENSION, parse_sparse_number


def _old_sparse(header: bytes) -> tuple[int, list[tuple[int, int]]]:
    try:
        real_size = parse_number(header[483:495])
    except ScanFault:
        raise ScanFault(Fault.SPARSE) from None
    if real_size < 0:
        raise ScanFault(Fault.SPARSE)
    return real_size, parse_old_segments(header[386:], 4)


def parse_old_segments(items: bytes, count: int) -> list[tuple[int, int]]:
    """Return the segments in the slots of an old GNU header or of its extension block."""
    found = []
    for start in range(0, count * 24, 24):
        if not items[start]:
            break
        try:
            found.append((parse_number(items[start : start + 12]), parse_number(items[start + 12 : start + 24])))
        except ScanFault:
            raise ScanFault(Fault.SPARSE) from None
    return found


@dataclass(slots=True)
class SparseLayout:
    """Where the stored bytes of a file belong.

    Attributes:
        real_size: of the file, with its holes.
        segments: (offset, length) of what is stored, as far as the headers say.
        goes_on: GNU's extension blocks follow the header.
        in_payload: the map stands in the payload (1.0).
    """

    real_size: int
    segments: list[tuple[int, int]]
    goes_on: bool = False
    in_payload: bool = False


def choose_layout(header: bytes, flag: bytes, size: int, records: list[tuple[bytes, bytes]]) -> SparseLayout:
    """Return the layout of a file's payload."""
    if flag == b"S":
        if records or header[257:265] != b"ustar  \0":
            raise ScanFault(Fault.SPARSE)
        real_size, segments = _old_sparse(header)
        return SparseLayout(real_size, segments, goes_on=bool(header[482]))
    if records and header[257:263] != b"ustar\0":
        raise ScanFault(Fault.SPARSE)
    return _pax_sparse(records) if records else SparseLayout(size, [(0, size)])


def _pax_sparse(records: list[tuple[bytes, bytes]]) -> SparseLayout:
    last = dict(records)
    sizes = [int(value) for key, value in records if key in (b"size", b"realsize")]
    offsets = [int(value) for key, value in records if key == b"offset"]
    lengths = [int(value) for key, value in records if key == b"numbytes"]
    if not sizes:
        raise ScanFault(Fault.SPARSE)
    if b"major" in last or b"minor" in last:
        if (int(last.get(b"major", -1)), int(last.get(b"minor", -1))) != (1, 0) or offsets or b"map" in last:
            raise ScanFault(Fault.SPARSE)
        return SparseLayout(sizes[-1], [], in_payload=True)
    if b"map" in last:
        numbers = [int(number) for number in last[b"map"].split(b",") if number]
        offsets, lengths = numbers[::2], numbers[1::2]
    if not offsets:
        raise ScanFault(Fault.SPARSE)
    if b"numblocks" in last and int(last[b"numblocks"]) != len(offsets):
        raise ScanFault(Fault.SPARSE)
    return SparseLayout(sizes[-1], list(zip(offsets, lengths, strict=True)))


def is_whole_map(numbers: list[int]) -> bool:
    """Return whether all numbers of a 1.0 map have been read."""
    return bool(numbers) and len(numbers) == 1 + 2 * numbers[0]


def read_map_lines(text: bytes, numbers: list[int]) -> bytes:
    """Append the next numbers of a 1.0 map; return the start of the line that is still incomplete."""
    *lines, rest = text.split(b"\n")
    for line in lines:
        if is_whole_map(numbers):
            return b""
        numbers.append(parse_sparse_number(line))
        if numbers[0] > MAX_EXTENSION:
            raise ScanFault(Fault.EXTENSION_SIZE)
    if not is_whole_map(numbers) and rest.strip(b"0123456789"):
        raise ScanFault(Fault.SPARSE)
    return rest


def check_segments(segments: list[tuple[int, int]], real_size: int, stored: int) -> None:
    """Refuse segments that overlap, exceed the file or do not add up to the stored bytes."""
    end = 0
    for offset, length in segments:
        if offset < end or length < 0 or offset + length > real_size:
            raise ScanFault(Fault.SPARSE)
        end = offset + length
    if sum(length for _, length in segments) != stored:
        raise ScanFault(Fault.SPARSE)
    pieces = [length for _, length in segments if length]
    if any(length % BLOCK for length in pieces[:-1]):
        raise ScanFault(Fault.SPARSE_PIECE)
