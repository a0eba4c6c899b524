"""Runs: the payload of one layer as compressed squashfs blocks, before anybody knows which of it will live.

::

    spans ── BlockCutter ──┬── blocks, a batch at a time ──> compressed on the pool ──> blocks file
                           └── tails ── the same once ── packed into fragment blocks ──> fragments file

A run does not know where it will be in an image, nor what other layers hold, and does not depend on how its layer was
cut into chunks: its bytes are a function of the layer, the compressor and the block size.
"""

from __future__ import annotations

import hashlib
import os
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from xxhash import xxh3_128_digest

from fastpull.errors import OutputError, printable
from fastpull.meter import clock
from fastpull.sinks.squashfs.format import RAW
from fastpull.tarstage import BlockCutter, start_writeback
from fastpull.trace import Stage
from fastpull.writing import pwrite_all

if TYPE_CHECKING:
    from fastpull.meter import Part
    from fastpull.sinks.squashfs.compressors import Compressor
    from fastpull.tarstage import EntryTable, Spans

BATCH = 1 << 20
"""Bytes of blocks that are given to a thread at a time: a future costs some 50 µs, compressing a batch some 2,500."""

Compress: TypeAlias = Callable[[memoryview], bytes | memoryview]
Decompress: TypeAlias = Callable[[bytes, int], bytes]

NO_SLOT = 0xFFFFFFFF
_SIZE = RAW - 1  # the part of a block's word that is its size on the disk
_FINGERPRINT = 16
_DONE, _FULL, _TOO_LARGE = 0, 1, 2  # what a cutter answers


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """What decides, with the layer, on the bytes of a run.

    Attributes:
        compressor: of the blocks.
        block_size: in bytes.
        fragments: whether tails and small files share blocks.
    """

    compressor: Compressor
    block_size: int
    fragments: bool


@dataclass(slots=True)
class Region:
    """A file, or the end of one, of compressed blocks, one after the other.

    Attributes:
        fd: of the file.
        end: of the blocks in the file; to begin with, where the first one is to be.
        is_image: whether the file is that of the image itself.
        words: for each block its word as it stands in an inode: size on the disk, with a bit for raw; 0 for a hole.
        starts: where each block begins.
    """

    fd: int
    end: int = 0
    is_image: bool = False
    words: array[int] = field(default_factory=lambda: array("I"))
    starts: array[int] = field(default_factory=lambda: array("Q"))

    def append(self, words: array[int], pieces: list[bytes | memoryview]) -> None:
        """Writes blocks behind the others.

        Raises:
            OSError: the filesystem refuses.
        """
        start = self.end
        self.end = pwrite_all(self.fd, start, pieces)
        if self.is_image:
            start_writeback(self.fd, start, self.end - start)
        self.starts.extend(accumulate((word & _SIZE for word in words[:-1]), initial=start))
        self.words.extend(words)  # last: another thread may look how many blocks can be read

    def extent(self, first: int, count: int = 1) -> tuple[int, int]:
        """Where consecutive blocks begin and end."""
        last = first + count - 1
        return self.starts[first], self.starts[last] + (self.words[last] & _SIZE)

    def read(self, number: int, decompress: Decompress, block_size: int) -> bytes:
        """The content of a block.

        Raises:
            OSError: it cannot be read.
        """
        start, stop = self.extent(number)
        content = os.pread(self.fd, stop - start, start)
        return content if self.words[number] & RAW else decompress(content, block_size)


@dataclass(slots=True)
class Run:
    """The result for one layer.

    A *slot* is a tail that is in a fragment block; tails of a layer that are equal share one.

    Attributes:
        blocks: of whole blocks, in the order of the layer's entries.
        fragments: of fragment blocks.
        firsts: for each entry the number of its first block.
        slots: for each entry the slot of its tail, or `NO_SLOT`; may be shorter than the layer.
        slot_fragments, slot_offsets, slot_lengths: of each slot.
        slot_fingerprints: XXH3-128 of each slot, one after the other.
    """

    blocks: Region
    fragments: Region
    firsts: array[int] = field(default_factory=lambda: array("Q"))
    slots: array[int] = field(default_factory=lambda: array("I"))
    slot_fragments: array[int] = field(default_factory=lambda: array("I"))
    slot_offsets: array[int] = field(default_factory=lambda: array("I"))
    slot_lengths: array[int] = field(default_factory=lambda: array("I"))
    slot_fingerprints: bytearray = field(default_factory=bytearray)

    def slot(self, entry: int) -> int:
        """The slot of an entry's tail, or `NO_SLOT`."""
        return self.slots[entry] if entry < len(self.slots) else NO_SLOT

    def fingerprint(self, slot: int) -> bytes:
        """XXH3-128 of a slot."""
        return bytes(self.slot_fingerprints[slot * _FINGERPRINT : (slot + 1) * _FINGERPRINT])

    def tail(self, slot: int, fragment: bytes | bytearray) -> memoryview:
        """The content of a slot, given that of its fragment block."""
        start = self.slot_offsets[slot]
        return memoryview(fragment)[start : start + self.slot_lengths[slot]]


class Buffers:
    """Buffers that are used again, since the first touch of fresh memory is expensive. Threads may share it.

    Args:
        size: of each, in bytes.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: deque[bytearray] = deque()

    def take(self) -> bytearray:
        """A buffer, with anything in it."""
        try:
            return self._free.pop()
        except IndexError:
            return bytearray(self._size)

    def give(self, buffer: bytearray) -> None:
        """Takes a buffer back."""
        self._free.append(buffer)


@dataclass(slots=True)
class _Job:
    region: Region
    buffer: bytearray
    is_shared: bool  # goes back to the buffers
    future: Future[tuple[array[int], list[bytes | memoryview]]]


class _Line:
    """Batches on their way into regions: compressed by whoever is free, and written in order.

    They are written by the threads that compress. The layer's own, which is the longest path, only waits where too many
    are on their way.

    Args:
        pool: compresses and writes.
        depth: batches that may be on their way.
        buffers: where shared ones go back to.
        part: counts where the time goes.
    """

    def __init__(self, pool: Executor, depth: int, buffers: Buffers, part: Part) -> None:
        self._pool = pool
        self._depth = depth
        self._buffers = buffers
        self._part = part
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._is_writing = False
        self._error: BaseException | None = None

    def submit(
        self, region: Region, compress: Compress, buffer: bytearray, lengths: array[int], *, is_shared: bool
    ) -> None:
        """Adds a batch, as for `compress_blocks`; blocks while too many are on their way.

        Raises:
            OSError: an earlier one could not be written.
        """
        with self._changed:
            if len(self._jobs) >= self._depth:
                self._wait_while(lambda: len(self._jobs) >= self._depth)
            self._check()
            future = self._pool.submit(self._compress, compress, buffer, lengths)
            self._jobs.append(_Job(region, buffer, is_shared, future))
        future.add_done_callback(self._advance)

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Blocks until enough is written.

        Args:
            is_done: asked after each batch, and said to be so when there is none left.

        Raises:
            OSError: something could not be written.
        """
        with self._changed:
            self._wait_while(lambda: (self._jobs or self._is_writing) and not is_done())
            self._check()

    def close(self) -> None:
        """Forgets what is not written; nothing will be when this returns."""
        with self._changed:
            jobs = list(self._jobs)
            self._jobs.clear()
            while self._is_writing:
                self._changed.wait()
        for job in jobs:
            job.future.cancel()

    def _wait_while(self, is_early: Callable[[], object]) -> None:
        began = clock()
        while self._error is None and is_early():
            self._changed.wait()
        self._part.waited(began, clock())

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _compress(
        self, compress: Compress, buffer: bytearray, lengths: array[int]
    ) -> tuple[array[int], list[bytes | memoryview]]:
        with self._part.at(Stage.COMPRESS):
            return compress_blocks(compress, buffer, lengths)

    def _advance(self, _: object) -> None:
        """Writes the batches at the front that are ready, unless another thread is at it, which will see them."""
        with self._changed:
            if self._is_writing:
                return
            self._is_writing = True
        while True:
            with self._changed:
                if not self._jobs or not self._jobs[0].future.done():
                    self._is_writing = False
                    self._changed.notify_all()
                    return
                job = self._jobs.popleft()
            try:
                words, pieces = job.future.result()
                with self._part.at(Stage.APPEND):
                    job.region.append(words, pieces)
            except BaseException as error:  # noqa: BLE001  # it is raised where somebody waits for it
                with self._changed:
                    self._error = error
                    self._jobs.clear()
            if job.is_shared:
                self._buffers.give(job.buffer)
            with self._changed:
                self._changed.notify_all()


class RunWriter:
    """Makes the run of one layer while it streams; see `fastpull.sinks.base.LayerWriter`.

    Args:
        run: to be filled.
        entries: of the layer.
        blocks: how they are made.
        pool: compresses and writes; the layer's own thread cuts.
        buffers: of `buffer_size` bytes.
        depth: batches that may be on their way at once.
        wanted: for each entry whether its blocks are needed.
        fail: makes an error of an OSError.
        part: counts where the time goes.
    """

    def __init__(
        self,
        run: Run,
        entries: EntryTable,
        blocks: BlockFormat,
        *,
        pool: Executor,
        buffers: Buffers,
        depth: int,
        wanted: bytearray | None,
        fail: Callable[[OSError], OutputError],
        part: Part,
    ) -> None:
        self.run = run
        self._entries = entries
        self._format = blocks
        self._line = _Line(pool, depth, buffers, part)
        self._buffers = buffers
        self._fail = fail
        self._buffer = buffers.take()
        self._cutter = BlockCutter(entries, blocks.block_size, blocks.fragments, self._buffer, wanted)
        self._fragment = bytearray()
        self._fragment_count = 0
        self._known: dict[bytes, int] = {}  # slots by fingerprint
        self._sums: dict[int, bytes] = {}  # sha256 of slots that were found again
        self._held: tuple[int, bytes] = (-1, b"")  # the fragment block that was read back last

    def write(self, chunk: bytes, spans: Spans) -> None:
        """Cuts the payload, and has it compressed.

        Raises:
            OutputError: the filesystem refuses, or a file is too large for the format.
        """
        while (code := self._cutter.cut(chunk, spans)) == _FULL:
            self._submit_blocks()
        if code == _TOO_LARGE:
            path = printable(self._entries.path(self._cutter.failed))
            raise OutputError(path, f"a file of more than 2^24 blocks of {self._format.block_size} bytes")
        if code != _DONE:
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
            self._line.wait(lambda: False)
        self.run.firsts = array("Q", self._cutter.firsts_bytes())

    def close(self) -> None:
        """Forgets what was not written."""
        self._line.close()

    def _pack(self, data: bytes, entries: bytes, lengths: bytes) -> None:
        """Puts tails into fragment blocks, each content once."""
        run, known, block_size = self.run, self._known, self._format.block_size
        tails, at = memoryview(data), 0
        for entry, length in zip(memoryview(entries).cast("I"), memoryview(lengths).cast("I"), strict=True):
            tail = tails[at : at + length]
            at += length
            fingerprint = xxh3_128_digest(tail)
            slot = known.get(fingerprint)
            if slot is None or not self._holds(slot, tail):
                if len(self._fragment) + length > block_size:
                    self._submit_fragment()
                slot = known[fingerprint] = len(run.slot_lengths)
                run.slot_fragments.append(self._fragment_count)
                run.slot_offsets.append(len(self._fragment))
                run.slot_lengths.append(length)
                run.slot_fingerprints += fingerprint
                self._fragment += tail
            run.slots.extend([NO_SLOT] * (entry - len(run.slots)))
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
            self._line.wait(lambda: number < len(fragments.words))
            return fragments.read(number, form.compressor.decompress_metadata, form.block_size)

    def _submit_blocks(self) -> None:
        buffer, self._buffer = self._buffer, self._buffers.take()
        lengths = array("I", self._cutter.take(self._buffer))
        with self._errors():
            self._line.submit(self.run.blocks, self._format.compressor.compress, buffer, lengths, is_shared=True)

    def _submit_fragment(self) -> None:
        fragment, self._fragment = self._fragment, bytearray()
        self._fragment_count += 1
        lengths = array("I", [len(fragment)])
        compress = self._format.compressor.compress_metadata
        with self._errors():
            self._line.submit(self.run.fragments, compress, fragment, lengths, is_shared=False)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._fail(error) from error


def compress_blocks(
    compress: Compress, buffer: bytearray, lengths: array[int]
) -> tuple[array[int], list[bytes | memoryview]]:
    """Compresses blocks that lie one after the other; what does not become smaller stays as it is.

    Args:
        compress: one block.
        buffer: with the blocks.
        lengths: of each; 0 for a hole, of which the buffer has nothing.

    Returns:
        The words of the blocks, and their bytes.
    """
    blocks, at = memoryview(buffer), 0
    words: array[int] = array("I")
    pieces: list[bytes | memoryview] = []
    for length in lengths:
        block = blocks[at : at + length]
        at += length
        packed = compress(block) if length else b""
        if len(packed) < length:
            words.append(len(packed))
            pieces.append(packed)
        elif length:
            words.append(length | RAW)
            pieces.append(block)
        else:
            words.append(0)
    return words, pieces
