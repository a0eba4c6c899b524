"""A gzip stream whose checkpoints are known, inflated by several threads.

::

    pieces ──┬── the next one: from a thread that has inflated it ahead, or else on the reader's own ──> read, in order
             └── those behind it: on threads of the executor, while cores are idle ──> held until they are read
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

import xxhash

from fastpull.concurrency.threads import Aborted
from fastpull.layers.deflate import InflateError, RawInflater
from fastpull.layers.gzip_stream import READ_SIZE, GzipMember, skip_header, skip_padding
from fastpull.pipeline.checkpoints import SPACING, GzipPiece

if TYPE_CHECKING:
    from fastpull.concurrency.cores import IdleCores

OUTPUT_SIZE = 256 << 10
_MAX_AHEAD = 2 * SPACING  # a stream without dynamic blocks has larger pieces, which are not held in memory
_TRAILER_SIZE = 8

ReadAt = Callable[[memoryview, int], int]
"""Read the stream into a buffer, from an offset on; return the number of bytes."""


class CheckpointsDamaged(Exception):
    """A piece did not inflate to what its checkpoint says."""


class ParallelInflater:
    """The output of a gzip stream, inflated piece by piece.

    Args:
        pieces: of the stream.
        read_at: reads the stream; several threads call it.
        executor: threads that inflate ahead.
        cores: idle cores; each thread that inflates ahead takes one.
        ahead: the number of pieces that may be inflated before they are read.
        timed: returns a context that measures the inflating on such a thread.

    Attributes:
        position: bytes of the stream that the output read so far took, about.
    """

    is_plain: ClassVar[bool] = False

    def __init__(
        self,
        pieces: Sequence[GzipPiece],
        read_at: ReadAt,
        executor: Executor,
        cores: IdleCores,
        ahead: int,
        timed: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._pieces = deque(pieces)
        self._read_at = read_at
        self._executor = executor
        self._cores = cores
        self._ahead = ahead
        self._timed = timed
        self._pending: deque[_PieceAhead] = deque()
        self._chunks: Iterator[bytes] = iter(())
        self._is_stopped = False
        self.position = 0

    def read(self, _size: int) -> bytes:
        """Return the next bytes, at most `OUTPUT_SIZE`; nothing at the end.

        Raises:
            CheckpointsDamaged: the checkpoints are not those of the stream.
            Aborted: the reader is closed.
        """
        while True:
            if self._is_stopped:
                raise Aborted
            self._start_ahead()
            chunk = next(self._chunks, None)
            if chunk is not None:
                return chunk
            if self._pending:
                self._chunks = self._pending.popleft().chunks()
            elif self._pieces:
                self._chunks = self._inflate(self._pieces.popleft())
            else:
                return b""

    def close(self) -> None:
        """End the threads that inflate ahead. May be called twice."""
        self._is_stopped = True
        while self._pending:
            self._pending.popleft().wait()

    def _start_ahead(self) -> None:
        while (
            self._pieces
            and len(self._pending) < self._ahead
            and self._pieces[0].size <= _MAX_AHEAD
            and self._cores.try_take()
        ):
            piece = _PieceAhead(self._inflate(self._pieces.popleft()), self._cores, self._timed)
            self._pending.append(piece)
            self._executor.submit(piece.run)

    def _inflate(self, piece: GzipPiece) -> Iterator[bytes]:
        hasher = xxhash.xxh3_64()
        left = piece.size
        try:
            for inflated in inflate_from(piece, self._read_at):
                if self._is_stopped:
                    raise Aborted
                chunk = inflated[:left]
                hasher.update(chunk)
                left -= len(chunk)
                self.position = max(self.position, piece.bit >> 3)
                yield chunk
                if not left:
                    break
        except (InflateError, OSError, EOFError) as error:
            raise CheckpointsDamaged from error
        if left or hasher.intdigest() != piece.fingerprint:
            raise CheckpointsDamaged


class _PieceAhead:
    """A piece that another thread inflates."""

    def __init__(
        self, source: Iterator[bytes], cores: IdleCores, timed: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._source = source
        self._cores = cores
        self._timed = timed
        self._ready: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._has_ended = False
        self._error: BaseException | None = None

    def run(self) -> None:
        error: BaseException | None = None
        try:
            with self._timed():
                for chunk in self._source:
                    with self._changed:
                        self._ready.append(chunk)
                        self._changed.notify()
        except BaseException as raised:  # noqa: BLE001  # the reader raises it
            error = raised
        self._cores.give_back()
        with self._changed:
            self._error = error
            self._has_ended = True
            self._changed.notify()

    def chunks(self) -> Iterator[bytes]:
        while True:
            with self._changed:
                while not self._ready and not self._has_ended:
                    self._changed.wait()
                if not self._ready:
                    break
                chunk = self._ready.popleft()
            yield chunk
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        with self._changed:
            while not self._has_ended:
                self._changed.wait()


def inflate_from(piece: GzipPiece, read_at: ReadAt) -> Iterator[bytes]:
    """Inflate a gzip stream from a checkpoint on, over the ends of members, in chunks of up to `OUTPUT_SIZE`.

    Raises:
        IsalError, BadGzipFile: the stream is corrupt, or no block begins at the checkpoint.
        EOFError: the stream ends within a member.
    """
    at = piece.bit >> 3
    buffer = memoryview(bytearray(READ_SIZE))

    def read() -> bytes:
        nonlocal at
        size = read_at(buffer, at)
        at += size
        return bytes(buffer[:size])

    data = b""
    if piece.offset:
        raw = RawInflater(piece.bit & 7, piece.window)
        yield from _inflate(raw, data, read)
        data = raw.rest
        while len(data) < _TRAILER_SIZE and (more := read()):
            data += more
        data = skip_padding(data[_TRAILER_SIZE:], read)
    else:
        data = read()
    while data:
        member = GzipMember()
        yield from _inflate(member, skip_header(data, read), read)
        data = skip_padding(member.rest, read)


def _inflate(inflater: RawInflater | GzipMember, data: bytes, read: Callable[[], bytes]) -> Iterator[bytes]:
    while not inflater.ended:
        if inflater.needs_input:
            data = data or read()
            if not data:
                raise EOFError("the stream ends within a member")
            chunk = inflater.inflate(data, OUTPUT_SIZE)
            data = b""
        else:
            chunk = inflater.inflate(b"", OUTPUT_SIZE)
        if chunk:
            yield chunk
