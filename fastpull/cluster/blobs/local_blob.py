"""One blob on this rank, while its bytes are exchanged: in the cache, or growing there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fastpull.cache.partial.extents import Extents
from fastpull.errors import CacheError, from_os_error
from fastpull.registry.download.download import clipped

if TYPE_CHECKING:
    from fastpull.cache.partial.blob import PartialBlob
    from fastpull.cache.store import CachedBlob
    from fastpull.oci.descriptor import Descriptor

ByteRange = tuple[int, int]


class LocalBlob:
    """The bytes of a blob that this rank has, to be read by whoever sends them on.

    They stay readable when the engine publishes the blob, or throws it away.

    Args:
        descriptor: of the blob.
        cached: the blob, if the cache has it.
        partial: where it grows otherwise.

    Attributes:
        partial: see above.
        is_settled: the engine has it, and will publish it or throw it away.
        origins: the other ranks that bytes of it came from: those that have read or fetched them.
    """

    def __init__(self, descriptor: Descriptor, cached: CachedBlob | None, partial: PartialBlob | None) -> None:
        self.descriptor = descriptor
        self.partial: PartialBlob | None = None
        self.is_settled = False
        self.origins = set[int]()
        self._cached: CachedBlob | None = None
        self._lock = threading.Lock()
        self._there, self._claimed = Extents(), Extents()
        self._fd = -1
        self.fill(cached, partial)

    def fill(self, cached: CachedBlob | None, partial: PartialBlob | None) -> None:
        """Says where the blob is, or grows; to be called once more where neither was known.

        Raises:
            CacheError: the file cannot be read.
        """
        self._cached, self.partial = cached, partial
        there = [(0, self.descriptor.size)] if cached is not None else []
        if partial is not None:
            try:
                self._fd = os.open(partial.data_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError as error:
                raise from_os_error(CacheError, error, partial.data_path) from error
            borders = [0, *(border for gap in partial.gaps() for border in gap), self.descriptor.size]
            there = list(zip(borders[::2], borders[1::2], strict=True))
        with self._lock:
            for start, stop in there:
                self._there.add(start, stop)
                self._claimed.add(start, stop)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of where the blob is."""
        return self._cached is None and self.partial is None

    @property
    def amount(self) -> int:
        """How many bytes are there."""
        with self._lock:
            return self._there.total

    @property
    def total(self) -> int:
        """How many there will be."""
        return self.descriptor.size

    def has(self, start: int, stop: int) -> bool:
        """Whether all bytes of a range are there."""
        return not self._gaps(self._there, start, stop)

    def gaps(self, start: int, stop: int) -> list[ByteRange]:
        """What of a range is neither there nor being written."""
        return self._gaps(self._claimed, start, stop)

    def there(self, start: int, stop: int) -> list[ByteRange]:
        """What of a range is there."""
        found, at = [], start
        for low, high in [*self._gaps(self._there, start, stop), (stop, stop)]:
            if low > at:
                found.append((at, low))
            at = high
        return found

    def put(self, offset: int, pieces: Sequence[bytes | memoryview]) -> list[ByteRange]:
        """Writes consecutive pieces, as far as they are not there; returns what was new. Blocks.

        Raises:
            CacheError: the filesystem refuses.
        """
        stop = offset + sum(map(len, pieces))
        with self._lock:
            gaps = self._gaps_of(self._claimed, offset, stop)
            self._claimed.add(offset, stop)
        assert self.partial is not None or not gaps
        if gaps == [(offset, stop)]:
            self._write(offset, pieces)
        elif gaps:
            for piece in pieces:
                for start, part in clipped(offset, piece, gaps):
                    self._write(start, [part])
                offset += len(piece)
        return gaps

    def read(self, buffer: memoryview, offset: int, _: int = 0, /) -> bool:
        """See `fastpull.cluster.transport.send_queue.Readable`.

        Raises:
            CacheError: the file cannot be read, or somebody has cut it short.
        """
        done = 0
        while done < len(buffer):
            if self._cached is not None:
                size = self._cached.readinto(buffer[done:], offset + done)
            else:
                try:
                    size = os.preadv(self._fd, [buffer[done:]], offset + done)
                except OSError as error:
                    raise from_os_error(CacheError, error, str(self.descriptor.digest)) from error
            if not size:
                raise CacheError(str(self.descriptor.digest), f"ends after {offset + done} bytes")
            done += size
        return True

    def close(self) -> None:
        """Closes the files; a blob that is not complete stays for the next time. May be called twice."""
        if self.partial is not None:
            self.partial.close()
        if self._cached is not None:
            self._cached.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, offset: int, pieces: Sequence[bytes | memoryview]) -> None:
        assert self.partial is not None
        self.partial.write(offset, pieces)
        with self._lock:
            self._there.add(offset, offset + sum(map(len, pieces)))

    def _gaps(self, extents: Extents, start: int, stop: int) -> list[ByteRange]:
        with self._lock:
            return self._gaps_of(extents, start, stop)

    def _gaps_of(self, extents: Extents, start: int, stop: int) -> list[ByteRange]:
        return [(max(low, start), min(high, stop)) for low, high in extents.gaps(stop) if high > start]


class RangeTarget:
    """A part of a shelf as the target of a download, which tells what comes.

    Args:
        shelf: of the blob.
        start, stop: of the part; the rest of the blob is not asked for.
        on_written: told each range that is new, on the thread that has written it.
    """

    def __init__(self, shelf: LocalBlob, start: int, stop: int, on_written: Callable[[int, int], None]) -> None:
        self._shelf = shelf
        self._start, self._stop = start, stop
        self._on_written = on_written

    def gaps(self) -> list[ByteRange]:
        """See `fastpull.registry.download.download.DownloadTarget`."""
        return self._shelf.gaps(self._start, self._stop)

    def write(self, offset: int, pieces: Sequence[bytes]) -> None:
        """See `fastpull.registry.download.download.DownloadTarget`."""
        for start, stop in self._shelf.put(offset, pieces):
            self._on_written(start, stop)
