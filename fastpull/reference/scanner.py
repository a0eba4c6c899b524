"""The scanner in plain Python: a generator that asks for bytes, and is fed chunks of any size."""

from __future__ import annotations

import struct
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import NoReturn

from fastpull.layers.entry import Entry, EntryType
from fastpull.layers.faults import Fault
from fastpull.layers.index import LayerIndex

_BLOCK = 512
_MAX_EXTENSION = 1 << 20
_MAX_ID = (1 << 32) - 2
_MAX_INT64 = (1 << 63) - 1
_MAX_TARGET = 4095
_MAX_XATTR_NAME = 255
_MAX_XATTRS = 65536
_FIRST, _LAST = 1, 2
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

Span = tuple[int, int, int, int, int]
Spans = list[Span]


class _Bad(Exception):
    def __init__(self, fault: Fault, culprit: bytes = b"") -> None:
        self.fault = fault
        self.culprit = culprit


class EntryTable:
    """The entries so far."""

    def __init__(self) -> None:
        self.rows: list[Entry] = []

    def __len__(self) -> int:
        return len(self.rows)

    def path(self, number: int) -> bytes:
        """The path of one entry."""
        return self.rows[number].path

    def columns(self) -> tuple[bytes, ...]:
        """The table as bytes, in the order of the fields of `fastpull.layers.index.Columns`."""
        return tuple(LayerIndex.of(self.rows).columns)


@dataclass(slots=True)
class _Extended:
    """What extended headers have said of the next entry."""

    pax: dict[bytes, bytes] | None = None
    sparse: list[tuple[bytes, bytes]] = field(default_factory=list)
    xattrs: list[tuple[bytes, bytes]] = field(default_factory=list)
    long_path: bytes | None = None
    long_link: bytes | None = None

    @property
    def pending(self) -> bool:
        return self.pax is not None or self.long_path is not None or self.long_link is not None


class Scanner:
    """Scans one layer; see ``native/scanner.pxi`` for the contract."""

    def __init__(self, max_content: int = _MAX_INT64) -> None:
        self.entries = EntryTable()
        self.content = 0
        self._max_content = max_content
        self.spans: Spans = []
        self.offset = 0
        self.culprit = b""
        self._fault = Fault.NONE
        self._position = 0  # in the stream, of what has been taken
        self._chunk = memoryview(b"")  # what is left of the one at hand
        self._fed = 0  # its size when it came
        self._common: dict[bytes, bytes] = {}
        self._may_end = True
        self._parser = self._parse()
        next(self._parser)

    def feed(self, chunk: bytes | bytearray | memoryview) -> int:
        """Scans a chunk and returns a fault, 0 for none."""
        self.spans = []
        if self._fault is Fault.NONE and len(chunk):
            try:
                self._parser.send(memoryview(chunk))
            except _Bad as bad:
                self._fault, self.culprit = bad.fault, bad.culprit
        return self._fault

    def finish(self) -> int:
        """Says that the stream has ended, and returns a fault, 0 for none."""
        if self._fault is Fault.NONE and not self._may_end:
            self._fault = Fault.TRUNCATED
        elif self._fault is Fault.NONE and self._extended.pending:
            self._fault = Fault.EXTENSION_DANGLING
        return self._fault

    # --- taking bytes

    def _more(self) -> Generator[None, memoryview, None]:
        while not self._chunk:
            self._chunk = yield
            self._fed = len(self._chunk)

    def _take(self, size: int) -> Generator[None, memoryview, bytes]:
        taken = bytearray()
        while len(taken) < size:
            yield from self._more()
            piece = self._chunk[: size - len(taken)]
            self._chunk = self._chunk[len(piece) :]
            taken += piece
            self._position += len(piece)
            self._may_end = False
        return bytes(taken)

    def _parse(self) -> Generator[None, memoryview, None]:
        self._extended = _Extended()
        while True:
            self._may_end = True
            yield from self._more()
            self.offset = self._position
            header = yield from self._take(_BLOCK)
            if not any(header):
                break
            if not _checksum_fits(header):
                raise _Bad(Fault.CHECKSUM)
            size = _number(header[124:136])
            if size < 0:
                raise _Bad(Fault.NUMBER)
            flag = header[156:157]
            if flag in (b"x", b"g", b"L", b"K"):
                yield from self._extension(header, flag, size)
            else:
                yield from self._entry(header, flag, size)
                self._extended = _Extended()
        if self._extended.pending:
            raise _Bad(Fault.EXTENSION_DANGLING)
        self._may_end = True
        if any((yield from self._take(_BLOCK))):
            raise _Bad(Fault.LONE_ZERO_BLOCK)
        while True:
            self._may_end = True
            yield from self._more()
            if any(self._chunk):
                raise _Bad(Fault.AFTER_END)
            self._chunk = memoryview(b"")

    # --- extended headers

    def _extension(self, header: bytes, flag: bytes, size: int) -> Generator[None, memoryview, None]:
        known = self._extended
        repeated = {
            b"x": known.pax,
            b"L": known.long_path,
            b"K": known.long_link,
            b"g": known.pending or None,
        }
        if repeated[flag] is not None:
            raise _Bad(Fault.EXTENSION_REPEATED)
        for start, end in _NUMBERS:
            _number(header[start:end])
        if size > _MAX_EXTENSION:
            raise _Bad(Fault.EXTENSION_SIZE)
        body = yield from self._take(size)
        if flag == b"x":
            known.pax = {}
            _read_pax(body, known.pax, known)
        elif flag == b"g":
            _read_pax(body, self._common, None)
        elif flag == b"L":
            known.long_path = _long_name(body)
        else:
            known.long_link = _long_name(body)
        yield from self._take(-size % _BLOCK)

    # --- entries

    def _entry(self, header: bytes, flag: bytes, size: int) -> Generator[None, memoryview, None]:
        known, pax = self._extended, self._extended.pax or {}
        path, link = _names(header, known)
        if not path:
            raise _Bad(Fault.EMPTY_PATH)

        def fail(fault: Fault) -> NoReturn:
            raise _Bad(fault, path)

        kind = _TYPES.get(flag)
        slash = path.endswith(b"/")
        if flag == b"\0":
            kind = EntryType.DIRECTORY if slash else EntryType.FILE
        if kind is None:
            fail(Fault.TYPEFLAG)
        if kind is EntryType.FILE and slash:
            fail(Fault.TRAILING_SLASH)
        size = _decimal(pax[b"size"]) if b"size" in pax else size
        if kind is not EntryType.FILE and size and (kind is not EntryType.HARDLINK or b"size" in pax):
            fail(Fault.SIZE_OF_TYPE)
        if kind is not EntryType.FILE and known.sparse:
            fail(Fault.SPARSE)
        try:
            entry = self._attributes(header, kind, pax)
            entry = replace(entry, path=_normalised(path), linkname=_link_of(kind, link))
            _check_xattrs(known.xattrs)
            layout = _layout(header, flag, size, known.sparse)
        except _Bad as bad:
            fail(bad.fault)
        if kind is not EntryType.FILE:
            self.entries.rows.append(entry)
            return
        if layout.real_size > self._max_content - self.content:
            fail(Fault.LAYER_SIZE)
        self.content += layout.real_size
        self.entries.rows.append(replace(entry, size=layout.real_size))
        yield from self._file(layout, size)

    def _file(self, layout: _Layout, size: int) -> Generator[None, memoryview, None]:
        segments = layout.segments
        if layout.goes_on:
            segments += yield from self._old_sparse_blocks()
        if layout.in_payload:
            segments, used = yield from self._sparse_map(size)
            size -= used
        _check_segments(segments, layout.real_size, size)
        yield from self._payload(segments, size)
        yield from self._take(-size % _BLOCK)

    def _attributes(self, header: bytes, kind: EntryType, pax: dict[bytes, bytes]) -> Entry:
        mode, found, device = _number(header[100:108]) & 0o7777, {}, (0, 0)
        for key, start, end in ((b"uid", 108, 116), (b"gid", 116, 124), (b"mtime", 136, 148)):
            value = _number(header[start:end])
            said = pax.get(key, self._common.get(key)) if key in pax else self._common.get(key)
            if said:
                value = _seconds(said) if key == b"mtime" else _decimal(said)
            found[key] = value
        if not (0 <= found[b"uid"] <= _MAX_ID and 0 <= found[b"gid"] <= _MAX_ID):
            raise _Bad(Fault.ID_RANGE)
        major, minor = _number(header[329:337]), _number(header[337:345])
        if kind in (EntryType.CHAR, EntryType.BLOCK) and header[257:262] == b"ustar":
            if not (0 <= major <= 0xFFF and 0 <= minor <= 0xFFFFF):
                raise _Bad(Fault.DEVICE_RANGE)
            device = (major, minor)
        uid, gid, mtime = (found[key] for key in _TIMES_AND_IDS)
        return Entry(b"", kind, mode, uid, gid, mtime, device=device, xattrs=tuple(self._extended.xattrs))

    # --- sparse maps that stand in the payload

    def _old_sparse_blocks(self) -> Generator[None, memoryview, list[tuple[int, int]]]:
        found: list[tuple[int, int]] = []
        total = 0
        while True:
            block = yield from self._take(_BLOCK)
            total += _BLOCK
            if total > _MAX_EXTENSION:
                raise _Bad(Fault.EXTENSION_SIZE)
            found += _old_segments(block, 21)
            if not block[504]:
                return found

    def _sparse_map(self, size: int) -> Generator[None, memoryview, tuple[list[tuple[int, int]], int]]:
        numbers: list[int] = []
        rest, used = b"", 0
        while True:
            block = yield from self._take(_BLOCK)
            used += _BLOCK
            if used > _MAX_EXTENSION:
                raise _Bad(Fault.EXTENSION_SIZE)
            if used > size:
                raise _Bad(Fault.SPARSE)
            rest = _lines_of_numbers(rest + block, numbers)
            if _is_whole_map(numbers):
                return list(zip(numbers[1::2], numbers[2::2], strict=True)), used

    def _payload(self, segments: list[tuple[int, int]], size: int) -> Generator[None, memoryview, None]:
        entry, flags, left = len(self.entries) - 1, _FIRST, size
        if not size:
            self.spans.append((entry, self._fed - len(self._chunk), 0, 0, _FIRST | _LAST))
        for offset, length in segments:
            done = 0
            while done < length:
                yield from self._more()
                take = min(length - done, len(self._chunk))
                left -= take
                span = (
                    entry,
                    self._fed - len(self._chunk),
                    take,
                    offset + done,
                    flags | (0 if left else _LAST),
                )
                self.spans.append(span)
                yield from self._take(take)
                done += take
                flags = 0


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


def _check_xattrs(xattrs: list[tuple[bytes, bytes]]) -> None:
    total = 0
    for name, value in xattrs:
        if len(name) > _MAX_XATTR_NAME:
            raise _Bad(Fault.XATTR_NAME)
        total += len(name) + len(value)
        if total > _MAX_XATTRS:
            raise _Bad(Fault.XATTR_SIZE)


# --- pax


def _read_pax(body: bytes, into: dict[bytes, bytes], known: _Extended | None) -> None:
    """Reads the records of an x header, or of a g header where ``known`` is None."""
    at = 0
    while at < len(body):
        digits, space, _ = body[at : at + 8].partition(b" ")
        if not space or not digits or digits.strip(b"0123456789"):
            raise _Bad(Fault.PAX_RECORD)
        length = int(digits)
        record = body[at : at + length]
        at += length
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if len(record) < max(length, len(digits) + 4) or record[-1:] != b"\n" or not key or not equals or b"\0" in key:
            raise _Bad(Fault.PAX_RECORD)
        if key in _TIMES_AND_IDS:
            if value:
                _seconds(value) if key == b"mtime" else _decimal(value)
            into[key] = value
        elif key in (b"path", b"linkpath", b"size") or key.startswith((b"SCHILY.xattr.", b"GNU.sparse.")):
            if known is None:
                raise _Bad(Fault.PAX_GLOBAL)
            _local_record(key, value, into, known)
    if known is not None:
        offsets = sum(key == b"offset" for key, _ in known.sparse)
        if offsets != sum(key == b"numbytes" for key, _ in known.sparse):
            raise _Bad(Fault.SPARSE)


def _local_record(key: bytes, value: bytes, into: dict[bytes, bytes], known: _Extended) -> None:
    if key.startswith(b"SCHILY.xattr."):
        name = key.removeprefix(b"SCHILY.xattr.")
        if not name:
            raise _Bad(Fault.PAX_RECORD)
        known.xattrs.append((name, value))
    elif key.startswith(b"GNU.sparse."):
        _sparse_record(key.removeprefix(b"GNU.sparse."), value, known.sparse)
    else:
        if key == b"size":
            _decimal(value)
        elif b"\0" in value:
            raise _Bad(Fault.NUL_IN_NAME)
        into[key] = value


def _sparse_record(key: bytes, value: bytes, sparse: list[tuple[bytes, bytes]]) -> None:
    if key == b"name":
        if not value or b"\0" in value:
            raise _Bad(Fault.SPARSE)
    elif key == b"map":
        numbers = value.split(b",") if value else []
        if len(numbers) % 2 or any(k in (b"map", b"offset") for k, _ in sparse):
            raise _Bad(Fault.SPARSE)
        for number in numbers:
            _sparse_number(number)
    elif key in (b"major", b"minor", b"size", b"realsize", b"numblocks", b"offset", b"numbytes"):
        _sparse_number(value)
        last = [k for k, _ in sparse if k in (b"offset", b"numbytes")][-1:] or [b"numbytes"]
        if key == b"offset" and (last == [b"offset"] or any(k == b"map" for k, _ in sparse)):
            raise _Bad(Fault.SPARSE)
        if key == b"numbytes" and last != [b"offset"]:
            raise _Bad(Fault.SPARSE)
    else:
        raise _Bad(Fault.SPARSE)
    sparse.append((key, value))


def _sparse_number(text: bytes) -> int:
    try:
        return _decimal(text)
    except _Bad:
        raise _Bad(Fault.SPARSE) from None


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
class _Layout:
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


def _layout(header: bytes, flag: bytes, size: int, records: list[tuple[bytes, bytes]]) -> _Layout:
    if flag == b"S":
        if records or header[257:265] != b"ustar  \0":
            raise _Bad(Fault.SPARSE)
        real_size, segments = _old_sparse(header)
        return _Layout(real_size, segments, goes_on=bool(header[482]))
    if records and header[257:263] != b"ustar\0":
        raise _Bad(Fault.SPARSE)
    return _pax_sparse(records) if records else _Layout(size, [(0, size)])


def _pax_sparse(records: list[tuple[bytes, bytes]]) -> _Layout:
    last = dict(records)
    sizes = [int(value) for key, value in records if key in (b"size", b"realsize")]
    offsets = [int(value) for key, value in records if key == b"offset"]
    lengths = [int(value) for key, value in records if key == b"numbytes"]
    if not sizes:
        raise _Bad(Fault.SPARSE)
    if b"major" in last or b"minor" in last:
        if (int(last.get(b"major", -1)), int(last.get(b"minor", -1))) != (1, 0) or offsets or b"map" in last:
            raise _Bad(Fault.SPARSE)
        return _Layout(sizes[-1], [], in_payload=True)
    if b"map" in last:
        numbers = [int(number) for number in last[b"map"].split(b",") if number]
        offsets, lengths = numbers[::2], numbers[1::2]
    if not offsets:
        raise _Bad(Fault.SPARSE)
    if b"numblocks" in last and int(last[b"numblocks"]) != len(offsets):
        raise _Bad(Fault.SPARSE)
    return _Layout(sizes[-1], list(zip(offsets, lengths, strict=True)))


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
