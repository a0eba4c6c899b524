"""Products: files that one rank makes for all, and that are copied while they grow."""

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
from fastpull.errors import FastpullError, LayerBlocksDamaged
from fastpull.concurrency.writes import pwrite_all

Fail = Callable[[OSError], FastpullError]
"""Makes an error of what the filesystem says."""

FILES = 2
"""Of each product: its bulk, and the rest, at whose end its seal stands."""

_SEAL = struct.Struct("<4sIQ16sQ16s")
_MAGIC = b"fpp1"
_PIECE = 1 << 20
_NO_EDITION = -1


@dataclass(frozen=True, slots=True)
class FileRegion:
    """Where a file is.

    Attributes:
        fd: of it, or of one that it is a part of.
        base: where in that it begins.
    """

    fd: int
    base: int = 0


class GrowingFile:
    """One file of a product: written from its front by its maker, in any order by who gets it, and read meanwhile.

    An *edition* is one attempt to make it. Bytes of another edition than the one at hand are nobody's.

    Args:
        fail: makes an error of what the filesystem says.
    """

    def __init__(self, fail: Fail) -> None:
        self._fail = fail
        self._lock = threading.Lock()
        self._fd = -1
        self._base = self._hashed = 0
        self._edition = _NO_EDITION
        self._there = Extents()
        self._hasher = xxhash.xxh3_128()
        self._total: int | None = None

    @property
    def total(self) -> int | None:
        """See `fastpull.cluster.transport.send_queue.Readable`."""
        return self._total

    @property
    def front(self) -> int:
        """So many bytes are there from its front on."""
        with self._lock:
            return self._there.prefix()

    @property
    def is_complete(self) -> bool:
        """Whether all of it is there."""
        with self._lock:
            return self._total is not None and self._there.prefix() >= self._total

    def open(self, place: FileRegion) -> None:
        """Says where it is from now on; nothing is there until an edition begins."""
        with self._lock:
            self._close()
            self._fd, self._base = os.dup(place.fd), place.base
            self._forget(_NO_EDITION)

    def begin(self, edition: int) -> None:
        """Forgets what is there."""
        with self._lock:
            self._forget(edition)

    def grow(self, stop: int) -> tuple[int, int]:
        """Takes note, where it is made, that it has grown to so many bytes; returns what is new."""
        with self._lock:
            start = self._there.prefix()
            self._there.add(0, stop)
            self._hash()
        return start, stop

    def put(self, edition: int, offset: int, piece: memoryview, total: int | None) -> bool:
        """Writes a piece, where it is received; returns whether it was of the edition at hand. Blocks.

        Raises:
            FastpullError: the filesystem refuses.
        """
        with self._lock:
            if edition != self._edition or self._fd < 0:
                return False
            try:
                pwrite_all(self._fd, self._base + offset, [piece])
            except OSError as error:
                raise self._fail(error) from error
            self._there.add(offset, offset + len(piece))
            self._total = self._total if total is None else total
            self._hash()
        return True

    def append(self, piece: bytes) -> None:
        """Writes the end, where it is made.

        Raises:
            FastpullError: the filesystem refuses.
        """
        with self._lock:
            start = self._there.prefix()
            try:
                pwrite_all(self._fd, self._base + start, [piece])
            except OSError as error:
                raise self._fail(error) from error
            self._total = start + len(piece)
            self._there.add(start, self._total)

    def read(self, buffer: memoryview, offset: int, edition: int, /) -> bool:
        """See `fastpull.cluster.transport.send_queue.Readable`."""
        with self._lock:
            if edition != self._edition or self._fd < 0:
                return False
            self._read(buffer, offset)
        return True

    def end_with(self, size: int) -> bytes:
        """Its last bytes."""
        with self._lock:
            found = bytearray(size)
            self._read(memoryview(found), (self._total or size) - size)
            return bytes(found)

    def fingerprint(self, stop: int) -> bytes:
        """XXH3-128 of so many bytes from the front, which are all there; the last thing to be asked."""
        with self._lock:
            self._hash(stop)
            return bytes(self._hasher.digest())

    def close(self) -> None:
        """Reads and writes nothing more."""
        with self._lock:
            self._close()

    def _forget(self, edition: int) -> None:
        self._edition, self._hashed, self._total = edition, 0, None
        self._there = Extents()
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
                raise self._fail(error) from error
            if not size:
                raise self._fail(OSError(errno.EIO, "a file is shorter than what was written to it"))
            done += size

    def _hash(self, stop: int | None = None) -> None:
        """Hashes what has come at the front, while it is in memory; of the rest file not what may be its seal."""
        front = self._there.prefix()
        stop = front - _SEAL.size if stop is None else stop
        while self._hashed < stop:
            piece = bytearray(min(_PIECE, stop - self._hashed))
            self._read(memoryview(piece), self._hashed)
            self._hasher.update(piece)
            self._hashed += len(piece)


@dataclass(frozen=True, slots=True)
class Trailer:
    """What the maker of a product says of its files.

    Attributes:
        layer: that the product is of.
        bulk_size: bytes of the bulk.
        bulk: its fingerprint.
        rest_size: bytes of the rest, without the seal.
        rest: its fingerprint.
    """

    layer: int
    bulk_size: int
    bulk: bytes
    rest_size: int
    rest: bytes

    def to_bytes(self) -> bytes:
        """As it stands at the end."""
        return _SEAL.pack(_MAGIC, self.layer, self.bulk_size, self.bulk, self.rest_size, self.rest)

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Reads one.

        Raises:
            ValueError: it is none.
        """
        magic, *fields = _SEAL.unpack(content)
        if magic != _MAGIC:
            raise ValueError("it has no seal")
        return cls(*fields)


class LayerArtifact:
    """What is made of one layer.

    Args:
        layer: its number.
        subject: its name, for messages.
        fail: makes an error of what the filesystem says.

    Attributes:
        bulk, rest: its files.
        edition: the one at hand; 0 before there is one.
        on_grown: told on the thread that makes it what of which file is new: (edition, file, start, stop).
        seal: of the complete product.
    """

    def __init__(self, layer: int, subject: str, fail: Fail) -> None:
        self.layer = layer
        self.subject = subject
        self.bulk, self.rest = GrowingFile(fail), GrowingFile(fail)
        self.files = (self.bulk, self.rest)
        self.edition = 0
        self.first_edition = 1
        self.on_grown: Callable[[int, int, int, int], None] = lambda *_: None
        self.seal: Trailer | None = None

    @property
    def is_complete(self) -> bool:
        """Whether it is all there, and was verified."""
        return self.seal is not None

    def open(self, bulk: FileRegion, rest: FileRegion) -> None:
        """Says where its files are."""
        for file, place in zip(self.files, (bulk, rest), strict=True):
            file.open(place)

    # --- where it is made

    def make(self) -> None:
        """Begins to make it, or begins anew."""
        self.begin(max(self.edition + 1, self.first_edition))

    def grow(self, file: int, stop: int) -> None:
        """Takes note that a file has grown to so many bytes."""
        start, stop = self.files[file].grow(stop)
        if stop > start:
            self.on_grown(self.edition, file, start, stop)

    def finish(self) -> None:
        """Says that it is complete.

        Raises:
            FastpullError: the filesystem refuses.
        """
        bulk_size, rest_size = self.bulk.front, self.rest.front
        fingerprints = self.bulk.fingerprint(bulk_size), self.rest.fingerprint(rest_size)
        seal = Trailer(self.layer, bulk_size, fingerprints[0], rest_size, fingerprints[1])
        self.rest.append(seal.to_bytes())
        self.seal = seal
        self.on_grown(self.edition, 1, rest_size, rest_size + _SEAL.size)

    # --- where it is received

    def begin(self, edition: int) -> None:
        """Forgets what is there, and waits for another edition."""
        self.edition = edition
        for file in self.files:
            file.begin(edition)

    def verify(self) -> bool:
        """Looks whether all of it is there. May be asked by several threads.

        Raises:
            RunDamaged: it is, and is not what its maker says.
            FastpullError: it cannot be read.
        """
        if not self.rest.is_complete:
            return False
        try:
            seal = Trailer.of(self.rest.end_with(_SEAL.size))
        except ValueError as error:
            raise LayerBlocksDamaged(self.subject, str(error)) from error
        if self.bulk.front < seal.bulk_size:
            return False
        if seal.layer != self.layer or seal.rest_size + _SEAL.size != self.rest.total:
            raise LayerBlocksDamaged(self.subject, "its seal is that of something else")
        if (self.bulk.fingerprint(seal.bulk_size), self.rest.fingerprint(seal.rest_size)) != (seal.bulk, seal.rest):
            raise LayerBlocksDamaged(self.subject, "its fingerprint is another than that of the node that made it")
        self.seal = seal
        return True

    def close(self) -> None:
        """Nothing is read or written any more."""
        for file in self.files:
            file.close()
