"""A blob being written to the cache: in any order, while a reader follows from the front."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import stat
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import xxhash

from fastpull.cache.directory import NotAFile
from fastpull.cache.errors import cache_errors
from fastpull.cache.files import unique
from fastpull.cache.partial.extents import Extents
from fastpull.cache.partial.journal import DATA, JOURNAL, RECORD_SIZE, Record, matches, read_records, replace_records
from fastpull.concurrency.threads import Aborted
from fastpull.concurrency.writes import flush, pwrite_all
from fastpull.errors import CacheError, LockLost
from fastpull.native import start_writeback

if TYPE_CHECKING:
    from fastpull.cache.directory import CacheDirectory
    from fastpull.cache.files import CacheFiles
    from fastpull.cache.locking.file_lock import FileLock
    from fastpull.oci.digest import Digest

_log = logging.getLogger(__name__)

_CHECK_SIZE = 1 << 20


class PartialBlob:
    """The bytes of one blob received so far: a data file and its journal.

    `Store.begin` creates it and passes it the lock, so there is one per digest at a time. Writers and the reader may
    run on different threads. No range is ever written twice, so the bytes that the reader has hashed are the bytes that
    are kept.

    Attributes:
        digest, size: digest and size of the blob.
        resumed: number of bytes that an earlier process had left.
    """

    def __init__(self, files: CacheFiles, digest: Digest, size: int, lock: FileLock) -> None:
        self.digest = digest
        self.size = size
        self.resumed = 0
        self.path = files.path("partial", digest)
        self._files = files
        self._directory: CacheDirectory | None = None
        self._lock = lock
        self._extents = Extents()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._data = self._journal = -1

    def __repr__(self) -> str:
        with self._changed:
            gaps, total = len(list(self._extents.gaps(self.size))), self._extents.total
        state = "closed" if self._data < 0 else "failed" if self._failure else "open"
        return f"<PartialBlob {self.digest}: {total} of {self.size} bytes, {gaps} gaps, {state}>"

    @property
    def data_path(self) -> str:
        """Path of the data file."""
        return f"{self.path}/{DATA}"

    @property
    def journal_path(self) -> str:
        """Path of the journal."""
        return f"{self.path}/{JOURNAL}"

    @property
    def directory(self) -> CacheDirectory:
        """The directory of both files, open from `resume` to `close`."""
        assert self._directory is not None, "resume() has been called"
        return self._directory

    def resume(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Take over the bytes that an earlier process has left and whose fingerprints still match.

        A data file of another user is copied, because users never write into each other's files. The same matches for a
        file that a suspect former owner of the lock may still have open.

        Args:
            is_stopped: polled now and then; a true result aborts.

        Raises:
            Aborted: ``is_stopped`` returned true.
            CacheError: the files cannot be read, or there is not enough free space for the rest.
        """
        with self._errors():
            directory, mode = self._open_directory(), self._files.mode
            records = read_records(directory, self.size)
            self._adopt(records, is_stopped)
            self._data = _open(directory, DATA, os.O_RDWR, mode)
            scratch = bytearray(_CHECK_SIZE)
            sound = []
            for record in records:
                if is_stopped():
                    raise Aborted
                if matches(self._data, record, scratch):
                    sound.append(record)
                    self._extents.add(record.offset, record.offset + record.length)
            if not self._can_append(len(sound)):
                replace_records(directory, sound, mode & 0o666)
            self._journal = _open(directory, JOURNAL, os.O_WRONLY | os.O_APPEND, mode)
            self.resumed = self._extents.total
            self._check_room()
            os.ftruncate(self._data, self.size)
        _log.debug("partial blob %s starts with %d of %d bytes", self.digest, self.resumed, self.size)

    def _open_directory(self) -> CacheDirectory:
        if self._directory is None:
            self._directory = self._files.directory("partial", self.digest.algorithm, self.digest.encoded, create=True)
        return self._directory

    def _can_append(self, count: int) -> bool:
        """Return whether the journal is missing, or belongs to this process alone and matches only sound records."""
        state = self.directory.lookup(JOURNAL)
        if state is None:
            return True
        is_own = _belongs_to_us_alone(state) and not self._lock.is_suspect
        return is_own and state.st_size == count * RECORD_SIZE

    def _adopt(self, records: list[Record], is_stopped: Callable[[], bool]) -> None:
        """Replace a data file that other processes may write to by a copy owned by this user.

        Anything that is not a file is removed.
        """
        try:
            source = self.directory.open(DATA)
        except FileNotFoundError:
            return
        except NotAFile:
            self.directory.remove(DATA)
            return
        try:
            if self._lock.is_suspect or not _belongs_to_us_alone(os.fstat(source)):
                _copy_file(source, self.directory, records, self._files.mode, is_stopped)
        finally:
            os.close(source)

    def _check_room(self) -> None:
        state = os.fstatvfs(self._data)
        free, missing = state.f_bavail * state.f_frsize, self.size - self.resumed
        if missing > free:
            reason = f"{missing} bytes are missing, {free} are free"
            raise CacheError(self.data_path, f"no space left on device ({reason})", errno.ENOSPC)

    # --- writing

    def gaps(self) -> list[tuple[int, int]]:
        """Return the ranges still missing, as (start, stop)."""
        with self._changed:
            return list(self._extents.gaps(self.size))

    @property
    def written(self) -> int:
        """Number of bytes present, in any ranges."""
        with self._changed:
            return self._extents.total

    def write(self, offset: int, pieces: Sequence[bytes | memoryview]) -> None:
        """Write consecutive pieces at ``offset``, and record them in the journal. Blocks; call it off the event loop.

        Raises:
            CacheError: the filesystem refuses; nothing is recorded.
            ValueError: a part of the range was written before.
        """
        length = sum(map(len, pieces))
        with self._changed:
            if self._extents.overlap(offset, offset + length):
                raise ValueError(
                    f"bytes {offset} to {offset + length} overlap bytes that are already present and may be verified"
                )
        hasher = xxhash.xxh3_64()
        for piece in pieces:
            hasher.update(piece)
        with self._errors():
            pwrite_all(self._data, offset, pieces)
            start_writeback(self._data, offset, length)
            os.write(self._journal, Record(offset, length, hasher.intdigest()).to_bytes())
        with self._changed:
            self._extents.add(offset, offset + length)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Declare that no more bytes will come. Readers raise ``error`` at once, even for bytes already present."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    # --- reading

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """Read bytes from the contiguous front part; wait for the first one. Return 0 at the end of the blob.

        Raises:
            FastpullError: the error passed to `fail`.
            CacheError: the data file cannot be read.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._extents.prefix() > offset or offset >= self.size)
            if self._failure:
                raise self._failure
            available = self._extents.prefix() - offset
        with self._errors():
            return os.preadv(self._data, [buffer[:available]], offset) if available > 0 else 0

    # --- completion

    def sync(self) -> None:
        """Wait until the bytes are on disk."""
        with self._errors():
            os.fdatasync(self._data)

    def take(self, mode: int) -> str:
        """Move the complete data file out of reach of other processes, and return its new name in the directory.

        Args:
            mode: new mode of the file.

        Raises:
            LockLost: the file of that name belongs to another process by now.
        """
        private = f".{DATA}.{unique()}.{secrets.token_hex(8)}"
        with self._errors():
            self._lock.check()
            os.fchmod(self._data, mode)
            flush(self._data)
            self.directory.rename(DATA, self.directory, private)
            # the lock may have been lost since the check; the rename tells which file this is
            found = self.directory.lookup(private)
            if found is None or not os.path.samestat(os.fstat(self._data), found):
                self.directory.rename(private, self.directory, DATA)
                raise LockLost(self.data_path, "another process has taken over this blob")
        return private

    def discard(self) -> None:
        """Remove bytes and journal unless another process has taken over, and release the lock."""
        with self._errors(), contextlib.suppress(LockLost):
            self._lock.check()
            for name in (JOURNAL, DATA):
                self.directory.unlink(name)
        self.close()

    def close(self) -> None:
        """Release the lock, and keep the bytes for the next process. May be called twice."""
        self.fail(CacheError(self.data_path, "the partial blob was closed during a read"))
        for fd in (self._data, self._journal):
            if fd >= 0:
                os.close(fd)
        self._data = self._journal = -1
        if self._directory is not None:
            self._directory.close()
        if self._lock.held:
            with contextlib.suppress(OSError), self._files.directory("partial", self.digest.algorithm) as directory:
                directory.remove_empty(self.digest.encoded)
            self._lock.release()

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        """Translate OSError into CacheError."""
        return cache_errors(default=self.data_path)


def is_damaged(directory: CacheDirectory, *, mend: bool) -> bool:
    """Return whether ranges differ from the journal. The caller matches the lock.

    A torn record at the end is the normal trace of a kill, and not damage.

    Args:
        directory: directory of the partial blob.
        mend: keep only sound records in the journal.

    Raises:
        OSError: the files cannot be read or written.
    """
    scratch, journal = bytearray(_CHECK_SIZE), directory.lookup(JOURNAL)
    try:
        data = directory.open(DATA)
    except FileNotFoundError:
        return False
    except NotAFile:
        if mend:
            directory.remove(DATA)
        return True
    try:
        records = read_records(directory, os.fstat(data).st_size)
        sound = [record for record in records if matches(data, record, scratch)]
    finally:
        os.close(data)
    if journal is None:
        return False
    damaged = not stat.S_ISREG(journal.st_mode) or journal.st_size // RECORD_SIZE != len(sound)
    if damaged and mend:
        replace_records(directory, sound, stat.S_IMODE(journal.st_mode) & 0o666 | 0o600)
    return damaged


def _belongs_to_us_alone(state: os.stat_result) -> bool:
    """Return whether a file belongs to this user and has no second hard link."""
    return stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and state.st_nlink == 1


def _copy_file(
    source: int, directory: CacheDirectory, records: list[Record], mode: int, is_stopped: Callable[[], bool]
) -> None:
    """Replace a data file by a copy.

    Args:
        source: descriptor of the original.
        directory: directory of the data file.
        records: ranges to copy; the rest of the copy is a hole.
        mode: mode of a directory, whose permissions the copy takes over.
        is_stopped: polled now and then; a true result aborts.

    Raises:
        Aborted: ``is_stopped`` returned true; nothing has changed.
        OSError: the system refuses.
    """
    draft = f".{DATA}.{unique()}"
    target = _open(directory, draft, os.O_WRONLY, mode)
    try:
        for record in records:
            _copy(source, target, record, is_stopped)
        directory.rename(draft, directory, DATA)
    except BaseException:
        directory.unlink(draft)
        raise
    finally:
        os.close(target)


def _copy(source: int, target: int, record: Record, is_stopped: Callable[[], bool]) -> None:
    stop = record.offset + record.length
    for at in range(record.offset, stop, _CHECK_SIZE):
        if is_stopped():
            raise Aborted
        pwrite_all(target, at, [os.pread(source, min(_CHECK_SIZE, stop - at), at)])


def _open(directory: CacheDirectory, name: str, flags: int, mode: int) -> int:
    """Open a file; create it, if missing, with the permissions of a directory of ``mode``."""
    try:
        fd = directory.create(name, flags)
    except FileExistsError:
        return directory.open(name, flags)
    os.fchmod(fd, mode & 0o666)
    return fd
