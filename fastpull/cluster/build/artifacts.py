"""Layer artifacts: files that one rank builds for all ranks, and that are copied while they grow."""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import xxhash

from fastpull.cache.partial.extents import Extents
from fastpull.concurrency.writes import pwrite_all
from fastpull.errors import FastpullError, LayerBlocksDamaged

TranslateError = Callable[[OSError], FastpullError]
"""Returns the error for an OSError of the output's filesystem."""

FILES = 2
"""The number of files of an artifact: its bulk, and the rest, which ends with the trailer."""

_TRAILER = struct.Struct("<4sIQ16sQ16s")
_MAGIC = b"fpp1"
_READ_SIZE = 1 << 20
_NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class FileRegion:
    """The end of a file, from an offset on.

    Attributes:
        fd: the file's descriptor.
        base: the offset, in bytes.
    """

    fd: int
    base: int = 0


class GrowingFile:
    """One file of an artifact. Its builder appends to it; other ranks write received pieces in any order.

    A *generation* is one attempt to build the artifact. Pieces of any other generation are dropped.

    Args:
        translate: returns the error for an OSError.
    """

    def __init__(self, translate: TranslateError) -> None:
        self._translate = translate
        self._lock = threading.Lock()
        self._fd = -1
        self._base = self._hashed = 0
        self._generation = _NO_GENERATION
        self._available = Extents()
        self._hasher = xxhash.xxh3_128()
        self._total: int | None = None

    @property
    def total(self) -> int | None:
        """See `fastpull.cluster.transport.send_queue.Readable`."""
        return self._total

    @property
    def front(self) -> int:
        """The number of available bytes from the start to the first gap."""
        with self._lock:
            return self._available.prefix()

    @property
    def is_complete(self) -> bool:
        """Whether all bytes are available."""
        with self._lock:
            return self._total is not None and self._available.prefix() >= self._total

    def open(self, region: FileRegion) -> None:
        """Set the region of the file; nothing is available until a generation begins."""
        with self._lock:
            self._close()
            self._fd, self._base = os.dup(region.fd), region.base
            self._reset(_NO_GENERATION)

    def begin(self, generation: int) -> None:
        """Begin a generation, without any content."""
        with self._lock:
            self._reset(generation)

    def mark_written(self, stop: int) -> tuple[int, int]:
        """Record that the builder has written all bytes up to an offset; return the range that is new."""
        with self._lock:
            start = self._available.prefix()
            self._available.add(0, stop)
            self._hash()
        return start, stop

    def write(self, generation: int, offset: int, piece: memoryview, total: int | None) -> bool:
        """Write a received piece; return whether it was of the current generation. Blocks.

        Raises:
            FastpullError: the file cannot be written.
        """
        with self._lock:
            if generation != self._generation or self._fd < 0:
                return False
            try:
                pwrite_all(self._fd, self._base + offset, [piece])
            except OSError as error:
                raise self._translate(error) from error
            self._available.add(offset, offset + len(piece))
            self._total = self._total if total is None else total
            self._hash()
        return True

    def append(self, piece: bytes) -> None:
        """Write the last bytes of the file, on its builder.

        Raises:
            FastpullError: the file cannot be written.
        """
        with self._lock:
            start = self._available.prefix()
            try:
                pwrite_all(self._fd, self._base + start, [piece])
            except OSError as error:
                raise self._translate(error) from error
            self._total = start + len(piece)
            self._available.add(start, self._total)

    def read(self, buffer: memoryview, offset: int, generation: int, /) -> bool:
        """See `fastpull.cluster.transport.send_queue.Readable`."""
        with self._lock:
            if generation != self._generation or self._fd < 0:
                return False
            self._read(buffer, offset)
        return True

    def read_end(self, size: int) -> bytes:
        """Return the last bytes of the file."""
        with self._lock:
            found = bytearray(size)
            self._read(memoryview(found), (self._total or size) - size)
            return bytes(found)

    def fingerprint(self, stop: int) -> bytes:
        """Return the XXH3-128 of the bytes up to an offset, which are all available. No call with a smaller one follows."""
        with self._lock:
            self._hash(stop)
            return bytes(self._hasher.digest())

    def close(self) -> None:
        """Close the file; later reads and writes do nothing."""
        with self._lock:
            self._close()

    def _reset(self, generation: int) -> None:
        self._generation, self._hashed, self._total = generation, 0, None
        self._available = Extents()
        self._hasher.reset()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _read(self, buffer: memoryview, offset: int) -> None:
        done = 0
        while done < len(buffer):
            try:
                size = os.preadv(self._fd, [buffer[done:]], self._base + offset + done)
            except OSError as error:
                raise self._translate(error) from error
            if not size:
                raise self._translate(OSError(errno.EIO, "a file is shorter than what was written to it"))
            done += size

    def _hash(self, stop: int | None = None) -> None:
        """Hash new bytes while they are in memory, except for the last ones, which may be the trailer."""
        front = self._available.prefix()
        stop = front - _TRAILER.size if stop is None else stop
        while self._hashed < stop:
            piece = bytearray(min(_READ_SIZE, stop - self._hashed))
            self._read(memoryview(piece), self._hashed)
            self._hasher.update(piece)
            self._hashed += len(piece)


@dataclass(frozen=True, slots=True)
class Trailer:
    """The last bytes of an artifact, by which a receiver verifies it.

    Attributes:
        layer: the number of the layer.
        bulk_size: the size of the bulk, in bytes.
        bulk: the fingerprint of the bulk.
        rest_size: the size of the rest without the trailer, in bytes.
        rest: the fingerprint of the rest without the trailer.
    """

    layer: int
    bulk_size: int
    bulk: bytes
    rest_size: int
    rest: bytes

    def to_bytes(self) -> bytes:
        """Return the trailer as bytes."""
        return _TRAILER.pack(_MAGIC, self.layer, self.bulk_size, self.bulk, self.rest_size, self.rest)

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Return the trailer in bytes.

        Raises:
            ValueError: the bytes are no trailer.
        """
        magic, *fields = _TRAILER.unpack(content)
        if magic != _MAGIC:
            raise ValueError("its trailer is missing")
        return cls(*fields)


class LayerArtifact:
    """The result of building one layer.

    Args:
        layer: the number of the layer.
        subject: the name of the layer, for messages.
        translate: returns the error for an OSError.

    Attributes:
        layer, subject: as above.
        bulk, rest: its files.
        files: both files.
        generation: the current generation; 0 before the first.
        first_generation: the lowest generation that this rank may begin in the current round.
        on_written: receives, on the thread that builds, what is new: (generation, file, start, stop).
        trailer: the trailer; None until the artifact is complete and verified.
    """

    def __init__(self, layer: int, subject: str, translate: TranslateError) -> None:
        self.layer = layer
        self.subject = subject
        self.bulk, self.rest = GrowingFile(translate), GrowingFile(translate)
        self.files = (self.bulk, self.rest)
        self.generation = 0
        self.first_generation = 1
        self.on_written: Callable[[int, int, int, int], None] = lambda *_: None
        self.trailer: Trailer | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the artifact is complete and verified."""
        return self.trailer is not None

    def open(self, bulk: FileRegion, rest: FileRegion) -> None:
        """Set the regions of its files."""
        for file, region in zip(self.files, (bulk, rest), strict=True):
            file.open(region)

    # --- on the builder

    def build(self) -> None:
        """Begin to build the artifact, or begin again."""
        self.begin(max(self.generation + 1, self.first_generation))

    def mark_written(self, file: int, stop: int) -> None:
        """Record that a file has been written up to an offset."""
        start, stop = self.files[file].mark_written(stop)
        if stop > start:
            self.on_written(self.generation, file, start, stop)

    def finish(self) -> None:
        """Complete the artifact with its trailer.

        Raises:
            FastpullError: the trailer cannot be written.
        """
        bulk_size, rest_size = self.bulk.front, self.rest.front
        fingerprints = self.bulk.fingerprint(bulk_size), self.rest.fingerprint(rest_size)
        trailer = Trailer(self.layer, bulk_size, fingerprints[0], rest_size, fingerprints[1])
        self.rest.append(trailer.to_bytes())
        self.trailer = trailer
        self.on_written(self.generation, 1, rest_size, rest_size + _TRAILER.size)

    # --- on receivers

    def begin(self, generation: int) -> None:
        """Drop all content, and begin a generation."""
        self.generation = generation
        for file in self.files:
            file.begin(generation)

    def verify(self) -> bool:
        """Verify the artifact, if all of it is available; return whether it is. Several threads may call it.

        Raises:
            LayerBlocksDamaged: the content differs from the trailer.
            FastpullError: the files cannot be read.
        """
        if not self.rest.is_complete:
            return False
        try:
            trailer = Trailer.parse(self.rest.read_end(_TRAILER.size))
        except ValueError as error:
            raise LayerBlocksDamaged(self.subject, str(error)) from error
        if self.bulk.front < trailer.bulk_size:
            return False
        if trailer.layer != self.layer or trailer.rest_size + _TRAILER.size != self.rest.total:
            raise LayerBlocksDamaged(self.subject, "its trailer belongs to something else")
        found = self.bulk.fingerprint(trailer.bulk_size), self.rest.fingerprint(trailer.rest_size)
        if found != (trailer.bulk, trailer.rest):
            raise LayerBlocksDamaged(self.subject, "its fingerprint differs from that of the node that built it")
        self.trailer = trailer
        return True

    def close(self) -> None:
        """Close the files; later reads and writes do nothing."""
        for file in self.files:
            file.close()
