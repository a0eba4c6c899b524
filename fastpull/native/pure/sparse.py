"""Sparse files: the maps of old GNU headers and of pax records."""

from __future__ import annotations

from dataclasses import dataclass

from fastpull.layers.faults import Fault
from fastpull.native.pure.fields import _BLOCK, _Bad, _number
from fastpull.native.pure.pax import _MAX_EXTENSION, _sparse_number

# --- sparse files


def _old_sparse(header: bytes) -> tuple[int, list[tuple[int, int]]]:
    try:
        real_size = _number(header[483:495])
    except _Bad:
        raise _Bad(Fault.SPARSE) from None
    if real_size < 0:
        raise _Bad(Fault.SPARSE)
    return real_size, _old_segments(header[386:], 4)


def _old_segments(items: bytes, count: int) -> list[tuple[int, int]]:
    found = []
    for start in range(0, count * 24, 24):
        if not items[start]:
            break
        try:
            found.append((_number(items[start : start + 12]), _number(items[start + 12 : start + 24])))
        except _Bad:
            raise _Bad(Fault.SPARSE) from None
    return found


@dataclass(slots=True)
class _SparseLayout:
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


def _layout(header: bytes, flag: bytes, size: int, records: list[tuple[bytes, bytes]]) -> _SparseLayout:
    if flag == b"S":
        if records or header[257:265] != b"ustar  \0":
            raise _Bad(Fault.SPARSE)
        real_size, segments = _old_sparse(header)
        return _SparseLayout(real_size, segments, goes_on=bool(header[482]))
    if records and header[257:263] != b"ustar\0":
        raise _Bad(Fault.SPARSE)
    return _pax_sparse(records) if records else _SparseLayout(size, [(0, size)])


def _pax_sparse(records: list[tuple[bytes, bytes]]) -> _SparseLayout:
    last = dict(records)
    sizes = [int(value) for key, value in records if key in (b"size", b"realsize")]
    offsets = [int(value) for key, value in records if key == b"offset"]
    lengths = [int(value) for key, value in records if key == b"numbytes"]
    if not sizes:
        raise _Bad(Fault.SPARSE)
    if b"major" in last or b"minor" in last:
        if (int(last.get(b"major", -1)), int(last.get(b"minor", -1))) != (1, 0) or offsets or b"map" in last:
            raise _Bad(Fault.SPARSE)
        return _SparseLayout(sizes[-1], [], in_payload=True)
    if b"map" in last:
        numbers = [int(number) for number in last[b"map"].split(b",") if number]
        offsets, lengths = numbers[::2], numbers[1::2]
    if not offsets:
        raise _Bad(Fault.SPARSE)
    if b"numblocks" in last and int(last[b"numblocks"]) != len(offsets):
        raise _Bad(Fault.SPARSE)
    return _SparseLayout(sizes[-1], list(zip(offsets, lengths, strict=True)))


def _is_whole_map(numbers: list[int]) -> bool:
    return bool(numbers) and len(numbers) == 1 + 2 * numbers[0]


def _lines_of_numbers(text: bytes, numbers: list[int]) -> bytes:
    """Adds the next numbers of a 1.0 map, of which the first counts the pairs; returns the line that goes on."""
    *lines, rest = text.split(b"\n")
    for line in lines:
        if _is_whole_map(numbers):
            return b""
        numbers.append(_sparse_number(line))
        if numbers[0] > _MAX_EXTENSION:
            raise _Bad(Fault.EXTENSION_SIZE)
    if not _is_whole_map(numbers) and rest.strip(b"0123456789"):
        raise _Bad(Fault.SPARSE)
    return rest


def _check_segments(segments: list[tuple[int, int]], real_size: int, stored: int) -> None:
    end = 0
    for offset, length in segments:
        if offset < end or length < 0 or offset + length > real_size:
            raise _Bad(Fault.SPARSE)
        end = offset + length
    if sum(length for _, length in segments) != stored:
        raise _Bad(Fault.SPARSE)
    pieces = [length for _, length in segments if length]
    if any(length % _BLOCK for length in pieces[:-1]):
        raise _Bad(Fault.SPARSE_PIECE)
