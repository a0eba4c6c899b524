"""The payload writer in plain Python."""

from __future__ import annotations

import errno
import os
from array import array
from typing import TYPE_CHECKING

from fastpull.native.codes import SpanFlag

if TYPE_CHECKING:
    from fastpull.native.pure.entry_table import EntryTable, Spans

_MAX_OFFSET = (1 << 63) - 1


class PayloadWriter:
    """Appends the payload spans of one layer to one file; see ``native/payload.pxi`` for the contract."""

    def __init__(self, entries: EntryTable, fd: int, wanted: bytearray | None = None) -> None:
        self.failed = 0
        self._entries = entries
        self._fd = fd
        self._wanted = wanted or b""
        self._starts: array[int] = array("q")
        self._holes: array[int] = array("q")
        self._at = self._end = 0

    def write(self, chunk: bytes | bytearray | memoryview, spans: Spans) -> int:
        """Write the spans of a chunk; return 0 or an errno."""
        data = memoryview(chunk)
        for entry, chunk_offset, length, offset, flags in spans:
            if self._wanted[entry : entry + 1] == b"\0":
                continue
            self.failed = entry
            try:
                if flags & SpanFlag.FIRST:
                    self._begin(entry)
                at, done = self._starts[entry] + offset, 0
                if length:
                    self._pass_hole(at)
                    self._at = at + length
                while done < length:
                    done += os.pwrite(self._fd, data[chunk_offset + done : chunk_offset + length], at + done)
                if flags & SpanFlag.LAST and self._at != self._end:
                    self._pass_hole(self._end)
                    os.ftruncate(self._fd, self._end)
            except OSError as error:
                return error.errno or errno.EIO
        return 0

    def starts_bytes(self) -> bytes:
        """For each entry eight bytes: where its payload begins in the file, or -1; shorter than the table."""
        return self._starts.tobytes()

    def holes_bytes(self) -> bytes:
        """For each hole sixteen bytes: where it begins in the file and where it ends, in this order and ascending."""
        return self._holes.tobytes()

    def _pass_hole(self, end: int) -> None:
        if end != self._at:
            self._holes.extend((self._at, end))
            self._at = end

    def _begin(self, entry: int) -> None:
        size = self._entries.rows[entry].size
        if size > _MAX_OFFSET - self._end:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        self._starts.extend([-1] * (entry - len(self._starts)))
        self._starts.append(self._end)
        self._end += size
