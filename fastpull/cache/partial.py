"""A blob on its way into the cache: written in any order, read from the front while it grows."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import xxhash

from fastpull.cache.extents import Extents
from fastpull.cache.journal import Record, holds, read_records
from fastpull.errors import CacheError, FastpullError, from_os_error
from fastpull.tarstage import start_writeback

if TYPE_CHECKING:
    from fastpull.cache.locks import FileLock
    from fastpull.oci.digest import Digest

_CHECK_SIZE = 1 << 20


class Partial:
    """The bytes of one blob that have come so far, in a data file with its journal.

    Made by `Cache.begin`, whose lock it holds: there is one at a time for each digest. Writers and the reader may be on
    different threads. A range that was written is never written again, so what the reader has hashed is what is kept.

    Attributes:
        digest, size: of the blob.
        resumed: how many bytes an earlier process had left.
    """

    def __init__(self, directory: str, digest: Digest, size: int, lock: FileLock) -> None:
        self.digest = digest
        self.size = size
        self.resumed = 0
        self.directory = directory
        self._lock = lock
        self._extents = Extents()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        with self._local_errors():
            os.makedirs(directory, exist_ok=True)
            self._data = os.open(self.data_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._journal = os.open(
                self.journal_path,
                os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW,
                0o600,
            )

    @property
    def data_path(self) -> str:
        """Where the bytes are."""
        return f"{self.directory}/data"

    @property
    def journal_path(self) -> str:
        """Where it stands which of them are there."""
        return f"{self.directory}/journal"

    def resume(self) -> None:
        """Takes over what an earlier process has left, as far as its fingerprints still fit.

        Raises:
            CacheError: the files cannot be read, or the filesystem has no room for the rest.
        """
        with self._local_errors():
            records = read_records(self.journal_path, self.size)
            scratch = bytearray(_CHECK_SIZE)
            sound = [record for record in records if holds(self._data, record, scratch)]
            for record in sound:
                self._extents.add(record.offset, record.offset + record.length)
            if len(sound) != len(records) or os.fstat(self._journal).st_size % len(Record(0, 0, 0).to_bytes()):
                os.ftruncate(self._journal, 0)
                os.write(self._journal, b"".join(record.to_bytes() for record in sound))
            self.resumed = self._extents.total
            self._check_room()
            os.ftruncate(self._data, self.size)

    def _check_room(self) -> None:
        state = os.fstatvfs(self._data)
        free, missing = state.f_bavail * state.f_frsize, self.size - self.resumed
        if missing > free:
            reason = f"{missing} bytes are to come, {free} are free"
            raise CacheError(self.data_path, f"no space left on device ({reason})", errno.ENOSPC)

    # --- writing

    def gaps(self) -> list[tuple[int, int]]:
        """The ranges that have not been written, as (start, stop)."""
        with self._changed:
            return list(self._extents.gaps(self.size))

    @property
    def written(self) -> int:
        """How many bytes are there, in whatever places."""
        with self._changed:
            return self._extents.total

    def write(self, offset: int, pieces: Sequence[bytes]) -> None:
        """Writes consecutive pieces at ``offset``, and remembers them in the journal. Blocks; call it off the loop.

        Raises:
            CacheError: the filesystem refuses; nothing is remembered then.
        """
        hasher = xxhash.xxh3_64()
        for piece in pieces:
            hasher.update(piece)
        length = sum(map(len, pieces))
        with self._local_errors():
            _pwrite_all(self._data, offset, pieces)
            start_writeback(self._data, offset, length)
            os.write(self._journal, Record(offset, length, hasher.intdigest()).to_bytes())
        with self._changed:
            self._extents.add(offset, offset + length)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Says that no more bytes will come: a reader that waits for some gets ``error``."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    # --- reading

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """Reads from the front as far as it has grown; waits for the first byte. Nothing at the blob's end.

        Raises:
            FastpullError: what `fail` was told.
            CacheError: the data file cannot be read.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._extents.prefix() > offset or offset >= self.size)
            if self._failure and self._extents.prefix() <= offset < self.size:
                raise self._failure
            available = self._extents.prefix() - offset
        with self._local_errors():
            return os.preadv(self._data, [buffer[:available]], offset) if available > 0 else 0

    # --- the end

    def sync(self) -> None:
        """Waits until the bytes are on their disk."""
        with self._local_errors():
            os.fdatasync(self._data)

    def discard(self) -> None:
        """Removes the bytes and the journal, and gives the lock back."""
        with self._local_errors():
            for path in (self.journal_path, self.data_path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        self.close()

    def close(self) -> None:
        """Gives the lock back and keeps what is there for the next process. May be called twice."""
        self.fail(CacheError(self.data_path, "closed while it was read"))
        if self._data >= 0:
            os.close(self._data)
            os.close(self._journal)
            self._data = self._journal = -1
            with contextlib.suppress(OSError):
                os.rmdir(self.directory)  # only when it is empty
            self._lock.release()

    @contextlib.contextmanager
    def _local_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, FastpullError):
                raise
            raise from_os_error(CacheError, error, self.data_path) from error


def _pwrite_all(fd: int, offset: int, pieces: Sequence[bytes]) -> None:
    pending = [memoryview(piece) for piece in pieces]
    while pending:
        written = os.pwritev(fd, pending[: os.sysconf("SC_IOV_MAX")], offset)
        offset += written
        while pending and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if pending and written:
            pending[0] = pending[0][written:]
