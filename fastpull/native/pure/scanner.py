"""The scanner in plain Python: a generator that asks for bytes, and is fed chunks of any size."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import NoReturn

from fastpull.layers.entry import Entry, EntryType
from fastpull.layers.faults import Fault
from fastpull.native.codes import SpanFlag
from fastpull.native.pure.entry_table import EntryTable, Spans
from fastpull.native.pure.fields import (
    BLOCK,
    ENTRY_TYPES,
    MAX_ID,
    MAX_INT64,
    NUMBER_FIELDS,
    TIMES_AND_IDS,
    ScanFault,
    checksum_fits,
    choose_names,
    link_target,
    normalised,
    parse_decimal,
    parse_long_name,
    parse_number,
    parse_seconds,
)
from fastpull.native.pure.pax import MAX_EXTENSION, Extended, check_xattrs, parse_pax
from fastpull.native.pure.sparse import (
    SparseLayout,
    check_segments,
    choose_layout,
    is_whole_map,
    parse_old_segments,
    read_map_lines,
)


class Scanner:
    """Scans one layer; see ``native/scanner.pxi`` for the contract."""

    def __init__(self, max_content: int = MAX_INT64) -> None:
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
        """Scan a chunk; return a fault, 0 for none."""
        self.spans = []
        if self._fault is Fault.NONE and len(chunk):
            try:
                self._parser.send(memoryview(chunk))
            except ScanFault as bad:
                self._fault, self.culprit = bad.fault, bad.culprit
        return self._fault

    def finish(self) -> int:
        """End the stream; return a fault, 0 for none."""
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
        self._extended = Extended()
        while True:
            self._may_end = True
            yield from self._more()
            self.offset = self._position
            header = yield from self._take(BLOCK)
            if not any(header):
                break
            if not checksum_fits(header):
                raise ScanFault(Fault.CHECKSUM)
            size = parse_number(header[124:136])
            if size < 0:
                raise ScanFault(Fault.NUMBER)
            flag = header[156:157]
            if flag in (b"x", b"g", b"L", b"K"):
                yield from self._extension(header, flag, size)
            else:
                yield from self._entry(header, flag, size)
                self._extended = Extended()
        if self._extended.pending:
            raise ScanFault(Fault.EXTENSION_DANGLING)
        self._may_end = True
        if any((yield from self._take(BLOCK))):
            raise ScanFault(Fault.LONE_ZERO_BLOCK)
        while True:
            self._may_end = True
            yield from self._more()
            if any(self._chunk):
                raise ScanFault(Fault.AFTER_END)
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
            raise ScanFault(Fault.EXTENSION_REPEATED)
        for start, end in NUMBER_FIELDS:
            parse_number(header[start:end])
        if size > MAX_EXTENSION:
            raise ScanFault(Fault.EXTENSION_SIZE)
        body = yield from self._take(size)
        if flag == b"x":
            known.pax = {}
            parse_pax(body, known.pax, known)
        elif flag == b"g":
            parse_pax(body, self._common, None)
        elif flag == b"L":
            known.long_path = parse_long_name(body)
        else:
            known.long_link = parse_long_name(body)
        yield from self._take(-size % BLOCK)

    # --- entries

    def _entry(self, header: bytes, flag: bytes, size: int) -> Generator[None, memoryview, None]:
        known, pax = self._extended, self._extended.pax or {}
        path, link = choose_names(header, known)
        if not path:
            raise ScanFault(Fault.EMPTY_PATH)

        def fail(fault: Fault) -> NoReturn:
            raise ScanFault(fault, path)

        kind = ENTRY_TYPES.get(flag)
        slash = path.endswith(b"/")
        if flag == b"\0":
            kind = EntryType.DIRECTORY if slash else EntryType.FILE
        if kind is None:
            fail(Fault.TYPEFLAG)
        if kind is EntryType.FILE and slash:
            fail(Fault.TRAILING_SLASH)
        size = parse_decimal(pax[b"size"]) if b"size" in pax else size
        if kind is not EntryType.FILE and size and (kind is not EntryType.HARDLINK or b"size" in pax):
            fail(Fault.SIZE_OF_TYPE)
        if kind is not EntryType.FILE and known.sparse:
            fail(Fault.SPARSE)
        try:
            entry = self._attributes(header, kind, pax)
            entry = replace(entry, path=normalised(path), linkname=link_target(kind, link))
            check_xattrs(known.xattrs)
            layout = choose_layout(header, flag, size, known.sparse)
        except ScanFault as bad:
            fail(bad.fault)
        if kind is not EntryType.FILE:
            self.entries.rows.append(entry)
            return
        if layout.real_size > self._max_content - self.content:
            fail(Fault.LAYER_SIZE)
        self.content += layout.real_size
        self.entries.rows.append(replace(entry, size=layout.real_size))
        yield from self._file(layout, size)

    def _file(self, layout: SparseLayout, size: int) -> Generator[None, memoryview, None]:
        segments = layout.segments
        if layout.goes_on:
            segments += yield from self._old_sparse_blocks()
        if layout.in_payload:
            segments, used = yield from self._sparse_map(size)
            size -= used
        check_segments(segments, layout.real_size, size)
        yield from self._payload(segments, size)
        yield from self._take(-size % BLOCK)

    def _attributes(self, header: bytes, kind: EntryType, pax: dict[bytes, bytes]) -> Entry:
        mode, found, device = parse_number(header[100:108]) & 0o7777, {}, (0, 0)
        for key, start, end in ((b"uid", 108, 116), (b"gid", 116, 124), (b"mtime", 136, 148)):
            value = parse_number(header[start:end])
            said = pax.get(key, self._common.get(key)) if key in pax else self._common.get(key)
            if said:
                value = parse_seconds(said) if key == b"mtime" else parse_decimal(said)
            found[key] = value
        if not (0 <= found[b"uid"] <= MAX_ID and 0 <= found[b"gid"] <= MAX_ID):
            raise ScanFault(Fault.ID_RANGE)
        major, minor = parse_number(header[329:337]), parse_number(header[337:345])
        if kind in (EntryType.CHAR, EntryType.BLOCK) and header[257:262] == b"ustar":
            if not (0 <= major <= 0xFFF and 0 <= minor <= 0xFFFFF):
                raise ScanFault(Fault.DEVICE_RANGE)
            device = (major, minor)
        uid, gid, mtime = (found[key] for key in TIMES_AND_IDS)
        return Entry(b"", kind, mode, uid, gid, mtime, device=device, xattrs=tuple(self._extended.xattrs))

    # --- sparse maps that stand in the payload

    def _old_sparse_blocks(self) -> Generator[None, memoryview, list[tuple[int, int]]]:
        found: list[tuple[int, int]] = []
        total = 0
        while True:
            block = yield from self._take(BLOCK)
            total += BLOCK
            if total > MAX_EXTENSION:
                raise ScanFault(Fault.EXTENSION_SIZE)
            found += parse_old_segments(block, 21)
            if not block[504]:
                return found

    def _sparse_map(self, size: int) -> Generator[None, memoryview, tuple[list[tuple[int, int]], int]]:
        numbers: list[int] = []
        rest, used = b"", 0
        while True:
            block = yield from self._take(BLOCK)
            used += BLOCK
            if used > MAX_EXTENSION:
                raise ScanFault(Fault.EXTENSION_SIZE)
            if used > size:
                raise ScanFault(Fault.SPARSE)
            rest = read_map_lines(rest + block, numbers)
            if is_whole_map(numbers):
                return list(zip(numbers[1::2], numbers[2::2], strict=True)), used

    def _payload(self, segments: list[tuple[int, int]], size: int) -> Generator[None, memoryview, None]:
        entry, flags, left = len(self.entries) - 1, int(SpanFlag.FIRST), size
        if not size:
            self.spans.append((entry, self._fed - len(self._chunk), 0, 0, SpanFlag.FIRST | SpanFlag.LAST))
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
                    flags | (0 if left else SpanFlag.LAST),
                )
                self.spans.append(span)
                yield from self._take(take)
                done += take
                flags = 0
