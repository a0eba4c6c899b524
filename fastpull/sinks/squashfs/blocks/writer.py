"""Writing the blocks of a layer while it streams.

::

    spans ── BlockCutter ──┬── data blocks ── batches ──> compressed by the pool ──> data file
                           └── tail-ends ── deduplicated ── fragment blocks ── batches ──> fragment file
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
from fastpull.sinks.squashfs.blocks.batches import BATCH_SIZE, Batches, BufferPool
from fastpull.sinks.squashfs.blocks.layer_blocks import NO_TAIL_ID, BlockFormat, LayerBlocks

if TYPE_CHECKING:
    from fastpull.native import EntryTable, Spans
    from fastpull.sinks.squashfs.blocks.pool import CompressionPool
    from fastpull.telemetry.timing import TimingScope


class LayerBlocksWriter:
    """Writes the blocks of one layer while it streams; see `fastpull.sinks.base.LayerWriter`.

    Args:
        layer_blocks: the empty blocks to fill.
        entries: the entries of the layer.
        block_format: the format of the blocks.
        pool: the pool that compresses and writes; the constructing thread, which cuts, is registered in it.
        buffers: the pool of buffers for data blocks.
        max_pending: the largest number of pending batches.
        wanted: whether the blocks of each entry are needed; None for all.
        translate_error: the translation of OSError into OutputError.
        timing: the scope that records the time of each stage.
    """

    def __init__(
        self,
        layer_blocks: LayerBlocks,
        entries: EntryTable,
        block_format: BlockFormat,
        *,
        pool: CompressionPool,
        buffers: BufferPool,
        max_pending: int,
        wanted: bytearray | None,
        translate_error: Callable[[OSError], OutputError],
        timing: TimingScope,
    ) -> None:
        self.layer_blocks = layer_blocks
        self._entries = entries
        self._format = block_format
        self._pool = pool
        self._batches = Batches(pool, max_pending, buffers, timing)
        self._buffers = buffers
        self._translate_error = translate_error
        self._buffer = buffers.acquire()
        self._cutter = BlockCutter(entries, block_format.block_size, block_format.fragments, self._buffer, wanted)
        self._fragment = bytearray()
        self._fragment_count = 0
        self._is_closed = False
        self._tail_hashes: dict[int, bytes] = {}  # SHA-256 by tail ID, of tail-ends that were read back
        self._last_read: tuple[int, bytes] = (-1, b"")  # number and content of the fragment block read last
        pool.register_thread()

    def write(self, chunk: bytes, spans: Spans) -> None:
        """Cut payload into blocks, and submit full batches for compression.

        Raises:
            OutputError: the filesystem cannot store the blocks, or a file is too large for the format.
        """
        while (code := self._cutter.cut(chunk, spans)) == CutResult.FULL:
            self._submit_data()
        if code == CutResult.TOO_LARGE:
            path = printable(self._entries.path(self._cutter.failed))
            raise OutputError(path, f"a file of more than 2^24 blocks of {self._format.block_size} bytes")
        if code != CutResult.DONE:
            raise MemoryError
        self._pack_tails(*self._cutter.take_tails())
        if self._cutter.pending >= BATCH_SIZE:
            self._submit_data()

    def finish(self) -> None:
        """Compress and write all remaining blocks.

        Raises:
            OutputError: the filesystem cannot store the blocks.
        """
        self._submit_data()
        if self._fragment:
            self._submit_fragment()
        with self._output_errors():
            self._batches.wait(lambda: False)
        self.layer_blocks.first_blocks = array("Q", self._cutter.firsts_bytes())

    def close(self) -> None:
        """Discard what is not written. The writer cannot be used afterwards."""
        self._batches.close()
        if not self._is_closed:
            self._pool.unregister_thread()
            self._buffers.release(self._buffer)
        self._is_closed = True

    def _pack_tails(self, data: bytes, entries: bytes, lengths: bytes) -> None:
        """Pack tail-ends into fragment blocks; equal ones share a tail ID."""
        blocks, known, block_size = self.layer_blocks, self.layer_blocks.fingerprints, self._format.block_size
        tails, at = memoryview(data), 0
        for entry, length in zip(memoryview(entries).cast("I"), memoryview(lengths).cast("I"), strict=True):
            tail = tails[at : at + length]
            at += length
            fingerprint = xxh3_128_digest(tail)
            tail_id = known.find(fingerprint)
            if tail_id < 0 or not self._has_content(tail_id, tail):
                if len(self._fragment) + length > block_size:
                    self._submit_fragment()
                tail_id = known.add(fingerprint)
                blocks.tail_fragments.append(self._fragment_count)
                blocks.tail_offsets.append(len(self._fragment))
                blocks.tail_lengths.append(length)
                self._fragment += tail
            blocks.tail_ids.extend([NO_TAIL_ID] * (entry - len(blocks.tail_ids)))
            blocks.tail_ids.append(tail_id)

    def _has_content(self, tail_id: int, tail: memoryview) -> bool:
        """Return whether a stored tail-end equals the given one. Each stored one is read back at most once."""
        fragment = self.layer_blocks.tail_fragments[tail_id]
        if fragment == self._fragment_count:
            return self.layer_blocks.tail(tail_id, self._fragment) == tail
        if tail_id not in self._tail_hashes:
            if fragment != self._last_read[0]:
                self._last_read = (fragment, self._read_fragment(fragment))
            stored = self.layer_blocks.tail(tail_id, self._last_read[1])
            self._tail_hashes[tail_id] = hashlib.sha256(stored).digest()
        return self._tail_hashes[tail_id] == hashlib.sha256(tail).digest()

    def _read_fragment(self, number: int) -> bytes:
        fragments, compressor = self.layer_blocks.fragments, self._format.compressor
        with self._output_errors():
            self._batches.wait(lambda: number < len(fragments.words))
            return fragments.read(number, compressor.decompress_metadata, self._format.block_size)

    def _submit_data(self) -> None:
        buffer, self._buffer = self._buffer, self._buffers.acquire()
        lengths = array("I", self._cutter.take(self._buffer))
        compress = self._format.compressor.compress
        with self._output_errors():
            self._batches.submit(self.layer_blocks.data, compress, buffer, lengths, is_pooled=True)

    def _submit_fragment(self) -> None:
        fragment, self._fragment = self._fragment, bytearray()
        self._fragment_count += 1
        lengths = array("I", [len(fragment)])
        compress = self._format.compressor.compress_metadata
        with self._output_errors():
            self._batches.submit(self.layer_blocks.fragments, compress, fragment, lengths, is_pooled=False)

    @contextmanager
    def _output_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._translate_error(error) from error
