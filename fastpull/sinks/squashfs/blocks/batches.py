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

BATCH = 1 << 20
"""Bytes of blocks that are given to a thread at a time: a future costs some 50 µs, compressing a batch some 2,500."""

Compress: TypeAlias = Callable[[memoryview], bytes | memoryview]


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

    def drop(self) -> None:
        """Forgets all that it has, until more are needed."""
        self._free.clear()


@dataclass(slots=True)
class _Batch:
    region: BlockFile
    buffer: bytearray
    is_shared: bool  # goes back to the buffers
    future: Future[tuple[array[int], list[bytes | memoryview]]]


class Batches:
    """The batches of one run on their way into its regions: compressed by whoever is free, and written in order.

    They are written by the threads that compress.

    Args:
        crew: compresses and writes.
        depth: batches that may be on their way.
        buffers: where shared ones go back to.
        part: counts where the time goes.
    """

    def __init__(self, crew: CompressionPool, depth: int, buffers: Buffers, part: TimingScope) -> None:
        self._crew = crew
        self._depth = depth
        self._buffers = buffers
        self._part = part
        self._jobs: deque[_Batch] = deque()
        self._changed = threading.Condition()
        self._is_writing = False
        self._error: BaseException | None = None

    def submit(
        self, region: BlockFile, compress: Compress, buffer: bytearray, lengths: array[int], *, is_shared: bool
    ) -> None:
        """Adds a batch, as for `compress_blocks`; blocks while too many are on their way.

        Raises:
            OSError: an earlier one could not be written.
        """
        with self._changed:
            if len(self._jobs) >= self._depth:
                self._wait_while(lambda: len(self._jobs) >= self._depth)
            self._check()
        future = self._crew.call(self._compress, compress, buffer, lengths)
        with self._changed:
            self._jobs.append(_Batch(region, buffer, is_shared, future))
        future.add_done_callback(self._advance)

    def wait(self, is_done: Callable[[], bool]) -> None:
        """Blocks until enough is written.

        Args:
            is_done: asked after each batch; when none is on its way, that is enough.

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
