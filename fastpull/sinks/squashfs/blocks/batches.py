"""Batches of blocks: compressed by a pool of threads, written in order."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fastpull.sinks.squashfs.format.superblock import RAW
from fastpull.telemetry.timing import clock
from fastpull.telemetry.trace import Stage

if TYPE_CHECKING:
    from fastpull.sinks.squashfs.blocks.layer_blocks import BlockFile
    from fastpull.sinks.squashfs.blocks.pool import CompressionPool
    from fastpull.telemetry.timing import TimingScope

BATCH_SIZE = 1 << 20
"""Bytes of blocks per call: a future costs about 50 µs, compressing a batch about 2,500 µs."""

Compress: TypeAlias = Callable[[memoryview], bytes | memoryview]


class BufferPool:
    """Reusable buffers, because the first access to fresh memory is slow. Threads may share a pool.

    Args:
        size: the size of each buffer, in bytes.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: deque[bytearray] = deque()

    def acquire(self) -> bytearray:
        """Return a buffer with arbitrary content."""
        try:
            return self._free.pop()
        except IndexError:
            return bytearray(self._size)

    def release(self, buffer: bytearray) -> None:
        """Take a buffer back for reuse."""
        self._free.append(buffer)

    def clear(self) -> None:
        """Free the memory of all unused buffers."""
        self._free.clear()


@dataclass(slots=True)
class _Batch:
    target: BlockFile
    buffer: bytearray
    is_pooled: bool  # the buffer returns to the buffer pool
    future: Future[tuple[array[int], list[bytes | memoryview]]]


class Batches:
    """The pending batches of one layer, compressed in parallel and written to their block files in order.

    The compressing threads also write.

    Args:
        pool: the pool that compresses and writes.
        max_pending: the largest number of pending batches.
        buffers: the pool to which pooled buffers return.
        timing: the scope that records the time of each stage.
    """

    def __init__(self, pool: CompressionPool, max_pending: int, buffers: BufferPool, timing: TimingScope) -> None:
        self._pool = pool
        self._max_pending = max_pending
        self._buffers = buffers
        self._timing = timing
        self._pending: deque[_Batch] = deque()
        self._changed = threading.Condition()
        self._is_writing = False
        self._error: BaseException | None = None

    def submit(
        self, target: BlockFile, compress: Compress, buffer: bytearray, lengths: array[int], *, is_pooled: bool
    ) -> None:
        """Add a batch. Blocks while the limit of pending batches is reached.

        Args:
            target: the file that receives the blocks.
            compress: see `compress_blocks`.
            buffer: see `compress_blocks`.
            lengths: see `compress_blocks`.
            is_pooled: whether the buffer returns to the buffer pool.

        Raises:
            OSError: an earlier batch could not be written.
        """
        with self._changed:
            if len(self._pending) >= self._max_pending:
                self._wait_while(lambda: len(self._pending) >= self._max_pending)
            self._raise_error()
        future = self._pool.submit(self._compress, compress, buffer, lengths)
        with self._changed:
            self._pending.append(_Batch(target, buffer, is_pooled, future))
        future.add_done_callback(self._write_ready)

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Block until ``is_done`` returns true, or until no batch is pending.

        Args:
            is_done: called after each batch.

        Raises:
            OSError: a batch could not be written.
        """
        with self._changed:
            self._wait_while(lambda: (self._pending or self._is_writing) and not is_done())
            self._raise_error()

    def close(self) -> None:
        """Discard the pending batches. No batch is written after this returns."""
        with self._changed:
            discarded = list(self._pending)
            self._pending.clear()
            while self._is_writing:
                self._changed.wait()
        for batch in discarded:
            batch.future.cancel()

    def _wait_while(self, must_wait: Callable[[], object]) -> None:
        began = clock()
        while self._error is None and must_wait():
            self._changed.wait()
        self._timing.waited(began, clock())

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _compress(
        self, compress: Compress, buffer: bytearray, lengths: array[int]
    ) -> tuple[array[int], list[bytes | memoryview]]:
        with self._timing.timed(Stage.COMPRESS):
            return compress_blocks(compress, buffer, lengths)

    def _write_ready(self, _: object) -> None:
        """Write the compressed batches at the front of the queue, unless another thread already writes."""
        with self._changed:
            if self._is_writing:
                return
            self._is_writing = True
        while True:
            with self._changed:
                if not self._pending or not self._pending[0].future.done():
                    self._is_writing = False
                    self._changed.notify_all()
                    return
                batch = self._pending.popleft()
            try:
                words, pieces = batch.future.result()
                with self._timing.timed(Stage.APPEND):
                    batch.target.append(words, pieces)
            except BaseException as error:  # noqa: BLE001  # `submit` and `wait` raise it
                with self._changed:
                    self._error = error
                    self._pending.clear()
            if batch.is_pooled:
                self._buffers.release(batch.buffer)
            with self._changed:
                self._changed.notify_all()


def compress_blocks(
    compress: Compress, buffer: bytearray, lengths: array[int]
) -> tuple[array[int], list[bytes | memoryview]]:
    """Compress consecutive blocks. A block that does not become smaller is stored raw.

    Args:
        compress: the function that compresses one block.
        buffer: the blocks, one after the other.
        lengths: the size of each block; 0 for a hole, which takes no bytes of the buffer.

    Returns:
        The words of the blocks, and the bytes of those that are not holes.
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
