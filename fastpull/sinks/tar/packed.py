"""A stream that is compressed on its way, by several threads, into the same bytes whatever their number.

What comes is cut into chunks of a fixed size, and each is compressed by itself. In gzip they are parts of one member,
each with the end of the one before as its dictionary; in zstd each is a frame.

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

_WINDOW = 32 << 10  # that deflate looks back
_GZIP_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"  # no name, no time, an unknown system


class Packer(Protocol):
    """A way to compress.

    Attributes:
        chunk_size: bytes that are compressed at a time.
        header: what the stream begins with.
    """

    chunk_size: ClassVar[int]
    header: ClassVar[bytes]

    def pack(self, chunk: bytes, before: bytes, /, *, is_last: bool) -> bytes:
        """Compresses a chunk; may be called on several threads at once.

        Args:
            chunk: to be compressed.
            before: the end of the chunk before.
            is_last: nothing comes after it.
        """

    def note(self, chunk: bytes, /) -> None:
        """Takes the chunks in their order."""

    def trailer(self) -> bytes:
        """What the stream ends with."""


class GzipPacker:
    """One gzip member.

    Args:
        level: 1 to 9.
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
    """Frames of zstd, each with its size and a checksum.

    Args:
        level: 1 to 22.
    """

    chunk_size: ClassVar[int] = 4 << 20
    header: ClassVar[bytes] = b""

    def __init__(self, level: int) -> None:
        self._level = level

    def pack(self, chunk: bytes, _before: bytes, *, is_last: bool) -> bytes:  # noqa: ARG002  # frames know no order
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
    """Makes a packer.

    Args:
        compression: ``gzip[:1-9]``, by default 6, or ``zstd[:1-22]``, by default 3.

    Raises:
        InvalidSetting: there is no such compression or level.
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
    """Stands where `Stream` stands, and writes to one what comes, compressed.

    Args:
        out: gets the compressed bytes.
        packer: compresses.
        pool: whose threads do that.
        memory: bytes for chunks on their way, at most; two of them there are in any case.

    Raises:
        OSError: from any method.
    """

    def __init__(self, out: Stream, packer: Packer, pool: Executor, memory: int) -> None:
        self._out = out
        self._packer = packer
        self._pool = pool
        self._depth = max(2, memory // (2 * packer.chunk_size))  # a chunk is there twice, as it came and compressed
        self._pending: deque[Future[bytes]] = deque()
        self._before = b""
        self._hasher = xxhash.xxh3_64()
        self._chunk = bytearray(packer.chunk_size)
        self._fill = 0
        self._put(packer.header)

    @property
    def fingerprint(self) -> str:
        """XXH3-64 of all compressed bytes, in hexadecimal, once all are written."""
        return self._hasher.hexdigest()

    def write(self, data: bytes) -> None:
        """Appends bytes, sooner or later."""
        left = memoryview(data)
        while left:
            piece = left[: self._room()]
            self._chunk[self._fill : self._fill + len(piece)] = piece
            self._fill += len(piece)
            left = left[len(piece) :]

    def copy(self, source: int, start: int, size: int, _holes: Sequence[int] = ()) -> None:
        """Appends a part of a file, see `Stream.copy`."""
        while size:
            room = min(self._room(), size)
            done = os.preadv(source, [memoryview(self._chunk)[self._fill : self._fill + room]], start)
            if not done:
                raise OSError(errno.EIO, "a spool file is shorter than what was written to it")
            self._fill += done
            start += done
            size -= done

    def flush(self) -> None:
        """Writes what has come, and ends the stream."""
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
