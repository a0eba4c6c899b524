"""One blob on this rank while its bytes are exchanged: complete in the cache, or partial."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fastpull.cache.errors import cache_errors
from fastpull.cache.partial.extents import Extents
from fastpull.errors import CacheError
from fastpull.registry.download.download import clipped

if TYPE_CHECKING:
    from fastpull.cache.partial.blob import PartialBlob
    from fastpull.cache.store import CachedBlob
    from fastpull.oci.descriptor import Descriptor

ByteRange = tuple[int, int]


class LocalBlob:
    """The bytes of a blob that are on this rank, for other ranks.

    They stay readable after the pipeline has published or deleted the blob.

    Args:
        descriptor: the descriptor of the blob.
        cached: the complete blob, if the cache has it.
        partial: the partial blob otherwise.

    Attributes:
        descriptor: the descriptor of the blob.
        partial: the partial blob; None if the blob is complete, or has no file yet.
        is_settled: whether the pipeline has opened the blob, and will publish or delete it.
        origins: the other ranks that read or fetched bytes of this blob.
    """

    def __init__(self, descriptor: Descriptor, cached: CachedBlob | None, partial: PartialBlob | None) -> None:
        self.descriptor = descriptor
        self.partial: PartialBlob | None = None
        self.is_settled = False
        self.origins = set[int]()
        self._cached: CachedBlob | None = None
        self._lock = threading.Lock()
        self._available, self._claimed = Extents(), Extents()
        self._fd = -1
        self.fill(cached, partial)

    def fill(self, cached: CachedBlob | None, partial: PartialBlob | None) -> None:
        """Set the files of the blob. May be called again where neither file was known.

        Raises:
            CacheError: the file cannot be read.
        """
        self._cached, self.partial = cached, partial
        available = [(0, self.descriptor.size)] if cached is not None else []
        if partial is not None:
            with cache_errors(partial.data_path):
                self._fd = os.open(partial.data_path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            borders = [0, *(border for gap in partial.gaps() for border in gap), self.descriptor.size]
            available = list(zip(borders[::2], borders[1::2], strict=True))
        with self._lock:
            for start, stop in available:
                self._available.add(start, stop)
                self._claimed.add(start, stop)

    @property
    def is_empty(self) -> bool:
        """Whether the blob has no file yet."""
        return self._cached is None and self.partial is None

    @property
    def available(self) -> int:
        """The number of available bytes."""
        with self._lock:
            return self._available.total

    @property
    def total(self) -> int:
        """The size of the blob in bytes."""
        return self.descriptor.size

    def has(self, start: int, stop: int) -> bool:
        """Return whether all bytes of a range are available."""
        return not self._gaps(self._available, start, stop)

    def gaps(self, start: int, stop: int) -> list[ByteRange]:
        """Return the parts of a range that are neither available nor being written."""
        return self._gaps(self._claimed, start, stop)

    def available_ranges(self, start: int, stop: int) -> list[ByteRange]:
        """Return the available parts of a range."""
        found, at = [], start
        for low, high in [*self._gaps(self._available, start, stop), (stop, stop)]:
            if low > at:
                found.append((at, low))
            at = high
        return found

    def write(self, offset: int, pieces: Sequence[bytes | memoryview]) -> list[ByteRange]:
        """Write the missing bytes of consecutive pieces; return the ranges that were new. Blocks.

        Raises:
            CacheError: the file cannot be written.
        """
        stop = offset + sum(map(len, pieces))
        with self._lock:
            gaps = _clipped_gaps(self._claimed, offset, stop)
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
            CacheError: the file cannot be read, or another process truncated it.
        """
        done = 0
        while done < len(buffer):
            if self._cached is not None:
                size = self._cached.readinto(buffer[done:], offset + done)
            else:
                with cache_errors(str(self.descriptor.digest)):
                    size = os.preadv(self._fd, [buffer[done:]], offset + done)
            if not size:
                raise CacheError(str(self.descriptor.digest), f"ends after {offset + done} bytes")
            done += size
        return True

    def close(self) -> None:
        """Close the files; the cache keeps a partial blob for the next pull. May be called twice."""
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
            self._available.add(offset, offset + sum(map(len, pieces)))

    def _gaps(self, extents: Extents, start: int, stop: int) -> list[ByteRange]:
        with self._lock:
            return _clipped_gaps(extents, start, stop)


class RangeTarget:
    """A range of a blob as the target of a download, which reports each write.

    Args:
        blob: the blob.
        start, stop: the range; the rest of the blob is not downloaded.
        on_written: receives each new range, on the thread that wrote it.
    """

    def __init__(self, blob: LocalBlob, start: int, stop: int, on_written: Callable[[int, int], None]) -> None:
        self._blob = blob
        self._start, self._stop = start, stop
        self._on_written = on_written

    def gaps(self) -> list[ByteRange]:
        """See `fastpull.registry.download.download.DownloadTarget`."""
        return self._blob.gaps(self._start, self._stop)

    def write(self, offset: int, pieces: Sequence[bytes]) -> None:
        """See `fastpull.registry.download.download.DownloadTarget`."""
        for start, stop in self._blob.write(offset, pieces):
            self._on_written(start, stop)


def _clipped_gaps(extents: Extents, start: int, stop: int) -> list[ByteRange]:
    return [(max(low, start), min(high, stop)) for low, high in extents.gaps(stop) if high > start]
