"""Writing the run of a layer while it streams.

::

    spans ── BlockCutter ──┬── blocks, a batch at a time ──> compressed on the pool ──> blocks file
                           └── tails ── the same once ── packed into fragment blocks ──> fragments file
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from xxhash import xxh3_128_digest

from fastpull.errors import OutputError, printable
from fastpull.native import BlockCutter
from fastpull.native.codes import CutResult
from fastpull.sinks.squashfs.blocks.batches import BATCH, Batches, Buffers
from fastpull.sinks.squashfs.blocks.layer_blocks import NO_TAIL_ID, BlockFormat, LayerBlocks

if TYPE_CHECKING:
    from fastpull.native import EntryTable, Spans
    from fastpull.sinks.squashfs.blocks.pool import CompressionPool
    from fastpull.telemetry.timing import TimingScope


class LayerBlocksWriter:
    """Makes the run of one layer while it streams; see `fastpull.sinks.base.LayerWriter`.

    Args:
        run: to be filled.
        entries: of the layer.
        blocks: how they are made.
        crew: compresses and writes; the layer's own thread, which cuts, becomes a member.
        buffers: of `buffer_size` bytes.
        depth: batches that may be on their way at once.
        wanted: for each entry whether its blocks are needed.
        fail: makes an error of an OSError.
        part: counts where the time goes.
    """

    def __init__(
        self,
        run: LayerBlocks,
        entries: EntryTable,
        blocks: BlockFormat,
        *,
        crew: CompressionPool,
        buffers: Buffers,
        depth: int,
        wanted: bytearray | None,
        fail: Callable[[OSError], OutputError],
        part: TimingScope,
    ) -> None:
        self.run = run
        self._entries = entries
        self._format = blocks
        self._crew = crew
        self._batches = Batches(crew, depth, buffers, part)
        self._buffers = buffers
        self._fail = fail
        self._buffer = buffers.take()
        self._cutter = BlockCutter(entries, blocks.block_size, blocks.fragments, self._buffer, wanted)
        self._fragment = bytearray()
        self._fragment_count = 0
        self._is_closed = False
        self._sums: dict[int, bytes] = {}  # sha256 of slots that were found again
        self._held: tuple[int, bytes] = (-1, b"")  # the fragment block that was read back last
        crew.join()

    def write(self, chunk: bytes, spans: Spans) -> None:
        """Cuts the payload, and has it compressed.

        Raises:
            OutputError: the filesystem refuses, or a file is too large for the format.
        """
        while (code := self._cutter.cut(chunk, spans)) == CutResult.FULL:
            self._submit_blocks()
        if code == CutResult.TOO_LARGE:
            path = printable(self._entries.path(self._cutter.failed))
            raise OutputError(path, f"a file of more than 2^24 blocks of {self._format.block_size} bytes")
        if code != CutResult.DONE:
            raise MemoryError
        self._pack(*self._cutter.take_tails())
        if self._cutter.pending >= BATCH:
            self._submit_blocks()

    def finish(self) -> None:
        """Has everything compressed and written.

        Raises:
            OutputError: the filesystem refuses.
        """
        self._submit_blocks()
        if self._fragment:
            self._submit_fragment()
        with self._errors():
            self._batches.wait(lambda: False)
        self.run.firsts = array("Q", self._cutter.firsts_bytes())

    def close(self) -> None:
        """Forgets what was not written. Nothing may follow."""
        self._batches.close()
        if not self._is_closed:
            self._crew.leave()
            self._buffers.give(self._buffer)
        self._is_closed = True

    def _pack(self, data: bytes, entries: bytes, lengths: bytes) -> None:
        """Puts tails into fragment blocks, each content once."""
        run, known, block_size = self.run, self.run.fingerprints, self._format.block_size
        tails, at = memoryview(data), 0
        for entry, length in zip(memoryview(entries).cast("I"), memoryview(lengths).cast("I"), strict=True):
            tail = tails[at : at + length]
            at += length
            fingerprint = xxh3_128_digest(tail)
            slot = known.find(fingerprint)
            if slot < 0 or not self._holds(slot, tail):
                if len(self._fragment) + length > block_size:
                    self._submit_fragment()
                slot = known.add(fingerprint)
                run.slot_fragments.append(self._fragment_count)
                run.slot_offsets.append(len(self._fragment))
                run.slot_lengths.append(length)
                self._fragment += tail
            run.slots.extend([NO_TAIL_ID] * (entry - len(run.slots)))
            run.slots.append(slot)

    def _holds(self, slot: int, tail: memoryview) -> bool:
        """Whether a slot has just this content. Each is read back once at most, however often it is found again."""
        number = self.run.slot_fragments[slot]
        if number == self._fragment_count:
            return self.run.tail(slot, self._fragment) == tail
        if slot not in self._sums:
            if number != self._held[0]:
                self._held = (number, self._read_fragment(number))
            self._sums[slot] = hashlib.sha256(self.run.tail(slot, self._held[1])).digest()
        return self._sums[slot] == hashlib.sha256(tail).digest()

    def _read_fragment(self, number: int) -> bytes:
        fragments, form = self.run.fragments, self._format
        with self._errors():
            self._batches.wait(lambda: number < len(fragments.words))
            return fragments.read(number, form.compressor.decompress_metadata, form.block_size)

    def _submit_blocks(self) -> None:
        buffer, self._buffer = self._buffer, self._buffers.take()
        lengths = array("I", self._cutter.take(self._buffer))
        with self._errors():
            self._batches.submit(self.run.blocks, self._format.compressor.compress, buffer, lengths, is_shared=True)

    def _submit_fragment(self) -> None:
        fragment, self._fragment = self._fragment, bytearray()
        self._fragment_count += 1
        lengths = array("I", [len(fragment)])
        compress = self._format.compressor.compress_metadata
        with self._errors():
            self._batches.submit(self.run.fragments, compress, fragment, lengths, is_shared=False)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._fail(error) from error
