"""Compressed streams: compressed by several threads, with the same bytes for every number of threads.

The input is cut into chunks of a fixed size, and each chunk is compressed separately. In gzip, chunks are parts of one
member, and the end of the previous chunk is the dictionary; in zstd, each chunk is a frame.

Spec: RFC 1952; RFC 1951; RFC 8878.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, ClassVar, Protocol

import xxhash
import zstandard

from fastpull.errors import InvalidSetting

if TYPE_CHECKING:
    from fastpull.sinks.tar.stream import Stream

_WINDOW = 32 << 10  # bytes of deflate's window
_GZIP_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"  # no name, no time, unknown operating system


class Packer(Protocol):
    """A compressor of chunks.

    Attributes:
        chunk_size: bytes of a chunk.
        header: first bytes of the stream.
    """

    chunk_size: ClassVar[int]
    header: ClassVar[bytes]

    def pack(self, chunk: bytes, before: bytes, /, *, is_last: bool) -> bytes:
        """Compress a chunk. May be called from several threads at once.

        Args:
            chunk: chunk to compress.
            before: end of the previous chunk.
            is_last: whether this is the last chunk.
        """

    def note(self, chunk: bytes, /) -> None:
        """Update the checksum; called for all chunks in order."""

    def trailer(self) -> bytes:
        """Return the last bytes of the stream."""


class GzipPacker:
    """Compresses into one gzip member.

    Args:
        level: compression level, 1 to 9.
    """

    chunk_size: ClassVar[int] = 1 << 20
    header: ClassVar[bytes] = _GZIP_HEADER

    def __init__(self, level: int) -> None:
        self._level = level
        self._checksum = 0
        self._size = 0

    def pack(self, chunk: bytes, before: bytes, *, is_last: bool) -> bytes:
        """See `Packer`."""
        packer = zlib.compressobj(self._level, zlib.DEFLATED, -15, zdict=before[-_WINDOW:])
        return packer.compress(chunk) + packer.flush(zlib.Z_FINISH if is_last else zlib.Z_SYNC_FLUSH)

    def note(self, chunk: bytes) -> None:
        """See `Packer`."""
        self._checksum = zlib.crc32(chunk, self._checksum)
        self._size += len(chunk)

    def trailer(self) -> bytes:
        """See `Packer`."""
        return struct.pack("<II", self._checksum, self._size & 0xFFFFFFFF)


class ZstdPacker:
    """Compresses into zstd frames, each with its size and a checksum.

    Args:
        level: compression level, 1 to 22.
    """

    chunk_size: ClassVar[int] = 4 << 20
    header: ClassVar[bytes] = b""

    def __init__(self, level: int) -> None:
        self._level = level

    def pack(self, chunk: bytes, _before: bytes, *, is_last: bool) -> bytes:  # noqa: ARG002  # frames are independent
        """See `Packer`."""
        return zstandard.ZstdCompressor(level=self._level, write_checksum=True).compress(chunk)

    def note(self, _chunk: bytes) -> None:
        """See `Packer`."""

    def trailer(self) -> bytes:
        """See `Packer`."""
        return b""


_PACKERS: dict[str, tuple[type[GzipPacker | ZstdPacker], int, int]] = {
    "gzip": (GzipPacker, 6, 9),
    "zstd": (ZstdPacker, 3, 22),
}


def packer_of(compression: str) -> Packer:
    """Return the packer for a compression.

    Args:
        compression: ``gzip[:1-9]``, with default level 6, or ``zstd[:1-22]``, with default level 3.

    Raises:
        InvalidSetting: the algorithm or the level is unknown.
    """
    name, colon, level = compression.partition(":")
    if name not in _PACKERS:
        raise InvalidSetting(compression, "a compressed tar has gzip[:LEVEL] or zstd[:LEVEL]")
    kind, default, highest = _PACKERS[name]
    if not colon:
        return kind(default)
    if not (level.isascii() and level.isdecimal() and len(level) <= 2 and 1 <= int(level) <= highest):
        raise InvalidSetting(compression, f"the levels of {name} are 1 to {highest}")
    return kind(int(level))


class PackedStream:
    """Replaces `Stream`: compresses everything that is written, and writes it to a stream.

    Args:
        out: stream for the compressed bytes.
        packer: compressor of chunks.
        pool: executor of the compressing threads.
        memory: maximum bytes of pending chunks; at least two chunks are pending.

    Raises:
        OSError: from any method.
    """

    def __init__(self, out: Stream, packer: Packer, pool: Executor, memory: int) -> None:
        self._out = out
        self._packer = packer
        self._pool = pool
        self._depth = max(2, memory // (2 * packer.chunk_size))  # each chunk is in memory twice, plain and compressed
        self._pending: deque[Future[bytes]] = deque()
        self._before = b""
        self._hasher = xxhash.xxh3_64()
        self._chunk = bytearray(packer.chunk_size)
        self._fill = 0
        self._put(packer.header)

    @property
    def fingerprint(self) -> str:
        """XXH3-64 of all compressed bytes in hexadecimal; valid after `flush`."""
        return self._hasher.hexdigest()

    def write(self, data: bytes) -> None:
        """Append bytes; they are written in chunks."""
        left = memoryview(data)
        while left:
            piece = left[: self._room()]
            self._chunk[self._fill : self._fill + len(piece)] = piece
            self._fill += len(piece)
            left = left[len(piece) :]

    def copy(self, source: int, start: int, size: int, _holes: Sequence[int] = ()) -> None:
        """Append a part of a file, see `Stream.copy`."""
        while size:
            room = min(self._room(), size)
            done = os.preadv(source, [memoryview(self._chunk)[self._fill : self._fill + room]], start)
            if not done:
                raise OSError(errno.EIO, "a spool file is shorter than what was written to it")
            self._fill += done
            start += done
            size -= done

    def flush(self) -> None:
        """Write all pending chunks, and end the stream."""
        self._submit(is_last=True)
        while self._pending:
            self._put(self._pending.popleft().result())
        self._put(self._packer.trailer())
        self._out.flush()

    def _room(self) -> int:
        if self._fill == len(self._chunk):
            self._submit(is_last=False)
        return len(self._chunk) - self._fill

    def _submit(self, *, is_last: bool) -> None:
        chunk, self._fill = bytes(memoryview(self._chunk)[: self._fill]), 0
        self._packer.note(chunk)
        while len(self._pending) >= self._depth:
            self._put(self._pending.popleft().result())
        self._pending.append(self._pool.submit(self._packer.pack, chunk, self._before, is_last=is_last))
        self._before = chunk[-_WINDOW:]

    def _put(self, packed: bytes) -> None:
        self._hasher.update(packed)
        self._out.write(packed)
