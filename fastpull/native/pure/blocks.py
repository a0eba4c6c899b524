"""The block cutter in plain Python."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from fastpull.native.codes import CutResult, SpanFlag

if TYPE_CHECKING:
    from fastpull.native.pure.entry_table import EntryTable, Spans

_MAX_BLOCKS = 1 << 24


class BlockCutter:
    """Cuts the payload spans of one layer into blocks; see ``native/blocks.pxi`` for the contract."""

    def __init__(
        self,
        entries: EntryTable,
        block_size: int,
        tails_apart: bool,
        buffer: bytearray,
        wanted: bytearray | None = None,
    ) -> None:
        if len(buffer) < 2 * block_size:
            raise ValueError("a buffer of less than two blocks")
        self.failed = 0
        self.pending = 0
        self._entries = entries
        self._block_size = block_size
        self._tails_apart = tails_apart
        self._buffer = buffer
        self._wanted = wanted or b""
        self._lengths = array("I")
        self._firsts = array("Q")
        self._count = 0
        self._tails = bytearray()
        self._tail_entries, self._tail_lengths = array("I"), array("I")
        self._content = bytearray()  # of the file at hand, from its first block that is not cut yet
        self._position = 0
        self._next = 0

    def cut(self, chunk: bytes | bytearray | memoryview, spans: Spans) -> int:
        """Cut the spans of a chunk; return 0, or 1 where the buffer is full, or 2 for a file that is too large."""
        data, block_size = memoryview(chunk), self._block_size
        for entry, chunk_offset, length, offset, flags in list(spans)[self._next :]:
            self.failed = entry
            if flags & SpanFlag.FIRST and not self._position:
                if self._entries.rows[entry].size // block_size >= _MAX_BLOCKS:
                    return CutResult.TOO_LARGE
                self._firsts.extend([self._count] * (entry + 1 - len(self._firsts)))
            if self._position < offset + length:
                self._content += bytes(offset - self._position) + data[chunk_offset : chunk_offset + length]
                self._position = offset + length
            size = self._entries.rows[entry].size
            if flags & SpanFlag.LAST and self._position < size:
                self._content += bytes(size - self._position)
                self._position = size
            skipping = self._wanted[entry : entry + 1] == b"\0"
            while len(self._content) >= block_size:
                if not self._put_block(block_size, skipping):
                    return CutResult.FULL
            if flags & SpanFlag.LAST:
                if self._content and self._tails_apart:
                    self._tail_entries.append(entry)
                    self._tail_lengths.append(len(self._content))
                    self._tails += self._content
                    self._content.clear()
                elif self._content and not self._put_block(len(self._content), skipping):
                    return CutResult.FULL
                self._position = 0
            self._next += 1
        self._next = 0
        return CutResult.DONE

    def take(self, buffer: bytearray) -> bytes:
        """Advance on in another buffer; return the lengths of the blocks in the one before."""
        self._buffer, self.pending = buffer, 0
        lengths, self._lengths = self._lengths.tobytes(), array("I")
        return lengths

    def take_tails(self) -> tuple[bytes, bytes, bytes]:
        """The tails since the last call: their bytes, their entries, their lengths."""
        found = bytes(self._tails), self._tail_entries.tobytes(), self._tail_lengths.tobytes()
        self._tails, self._tail_entries, self._tail_lengths = bytearray(), array("I"), array("I")
        return found

    def firsts_bytes(self) -> bytes:
        """For each entry eight bytes: the number of its first block; may be shorter than the table."""
        return self._firsts.tobytes()

    def _put_block(self, length: int, skipping: bool) -> bool:
        if not skipping:
            block = self._content[:length]
            if any(block):
                if self.pending + self._block_size > len(self._buffer):
                    return False
                self._buffer[self.pending : self.pending + length] = block
                self.pending += length
                self._lengths.append(length)
            else:
                self._lengths.append(0)
            self._count += 1
        del self._content[:length]
        return True
