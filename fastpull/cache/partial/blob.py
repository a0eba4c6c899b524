"""A blob on its way into the cache: written in any order, read from the front while it grows."""

from __future__ import annotations

import contextlib
import errno
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
from fastpull.cache.partial.journal import DATA, JOURNAL, RECORD_SIZE, Record, holds, read_records, replace_records
from fastpull.concurrency.threads import Aborted
from fastpull.concurrency.writes import flush, pwrite_all
from fastpull.errors import CacheError, LockLost
from fastpull.native import start_writeback

if TYPE_CHECKING:
    from fastpull.cache.directory import CacheDirectory
    from fastpull.cache.files import CacheFiles
    from fastpull.cache.locking.file_lock import FileLock
    from fastpull.oci.digest import Digest

_CHECK_SIZE = 1 << 20


class PartialBlob:
    """The bytes of one blob that have come so far, in a data file with its journal.

    Made by `Cache.begin`, whose lock it holds: there is one at a time for each digest. Writers and the reader may be on
    different threads. A range that was written is never written again, so what the reader has hashed is what is kept.

    Attributes:
        digest, size: of the blob.
        resumed: how many bytes an earlier process had left.
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

    @property
    def data_path(self) -> str:
        """Where the bytes are."""
        return f"{self.path}/{DATA}"

    @property
    def journal_path(self) -> str:
        """Where it stands which of them are there."""
        return f"{self.path}/{JOURNAL}"

    @property
    def directory(self) -> CacheDirectory:
        """The directory of the two files, open from `resume` to `close`."""
        assert self._directory is not None, "it was resumed"
        return self._directory

    def resume(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Takes over what an earlier process has left, as far as its fingerprints still fit.

        What is another user's is copied: nobody writes into anybody else's files. So is what somebody may still have
        open who lost the lock.

        Args:
            is_stopped: asked now and then whether to give up.

        Raises:
            Aborted: it was.
            CacheError: the files cannot be read, or the filesystem has no room for the rest.
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
                if holds(self._data, record, scratch):
                    sound.append(record)
                    self._extents.add(record.offset, record.offset + record.length)
            if not self._can_append(len(sound)):
                replace_records(directory, sound, mode & 0o666)
            self._journal = _open(directory, JOURNAL, os.O_WRONLY | os.O_APPEND, mode)
            self.resumed = self._extents.total
            self._check_room()
            os.ftruncate(self._data, self.size)

    def _open_directory(self) -> CacheDirectory:
        if self._directory is None:
            self._directory = self._files.directory("partial", self.digest.algorithm, self.digest.encoded, create=True)
        return self._directory

    def _can_append(self, count: int) -> bool:
        """Whether the journal is nobody else's, and of so many records that are all true, or not there."""
        state = self.directory.lookup(JOURNAL)
        if state is None:
            return True
        is_own = _is_only_ours(state) and not self._lock.is_suspect
        return is_own and state.st_size == count * RECORD_SIZE

    def _adopt(self, records: list[Record], is_stopped: Callable[[], bool]) -> None:
        """Put a copy that belongs to this user in the place of a data file that somebody else may write to.

        Whatever else stands there, which is no file, goes.
        """
        try:
            source = self.directory.open(DATA)
        except FileNotFoundError:
            return
        except NotAFile:
            self.directory.remove(DATA)
            return
        try:
            if self._lock.is_suspect or not _is_only_ours(os.fstat(source)):
                _copy_file(source, self.directory, records, self._files.mode, is_stopped)
        finally:
            os.close(source)

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

    def write(self, offset: int, pieces: Sequence[bytes | memoryview]) -> None:
        """Writes consecutive pieces at ``offset``, and remembers them in the journal. Blocks; call it off the loop.

        Raises:
            CacheError: the filesystem refuses; nothing is remembered then.
        """
        length = sum(map(len, pieces))
        with self._changed:
            if self._extents.overlap(offset, offset + length):
                raise ValueError(f"bytes {offset} to {offset + length} are partly there, and may be verified already")
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
        """Says that no more bytes will come: a reader gets ``error``, at once, whatever is there already."""
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
            if self._failure:
                raise self._failure
            available = self._extents.prefix() - offset
        with self._errors():
            return os.preadv(self._data, [buffer[:available]], offset) if available > 0 else 0

    # --- the end

    def sync(self) -> None:
        """Waits until the bytes are on their disk."""
        with self._errors():
            os.fdatasync(self._data)

    def take(self, mode: int) -> str:
        """Takes the complete data file out of everybody's reach, and returns its new name in the directory.

        Args:
            mode: that it is to have.

        Raises:
            LockLost: the file of that name is somebody else's by now.
        """
        private = f".{DATA}.{unique()}.{secrets.token_hex(8)}"
        with self._errors():
            self._lock.check()
            os.fchmod(self._data, mode)
            flush(self._data)
            self.directory.rename(DATA, self.directory, private)
            # whatever happened between check and rename, now it is known which file this is
            found = self.directory.lookup(private)
            if found is None or not os.path.samestat(os.fstat(self._data), found):
                self.directory.rename(private, self.directory, DATA)
                raise LockLost(self.data_path, "somebody else has taken over this blob")
        return private

    def discard(self) -> None:
        """Removes the bytes and the journal, unless somebody else has taken over, and gives the lock back."""
        with self._errors(), contextlib.suppress(LockLost):
            self._lock.check()
            for name in (JOURNAL, DATA):
                self.directory.unlink(name)
        self.close()

    def close(self) -> None:
        """Gives the lock back and keeps what is there for the next process. May be called twice."""
        self.fail(CacheError(self.data_path, "closed while it was read"))
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
        return cache_errors(default=self.data_path)


def is_damaged(directory: CacheDirectory, *, mend: bool) -> bool:
    """Whether ranges are not what the journal says; the caller holds the lock.

    A torn record at the end is what a kill leaves, and no damage.

    Args:
        directory: of the unfinished blob.
        mend: leave in the journal only what is true.

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
        sound = [record for record in records if holds(data, record, scratch)]
    finally:
        os.close(data)
    if journal is None:
        return False
    damaged = not stat.S_ISREG(journal.st_mode) or journal.st_size // RECORD_SIZE != len(sound)
    if damaged and mend:
        replace_records(directory, sound, stat.S_IMODE(journal.st_mode) & 0o666 | 0o600)
    return damaged


def _is_only_ours(state: os.stat_result) -> bool:
    """Whether a file is this user's, and has no other name that somebody could have lent it."""
    return stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and state.st_nlink == 1


def _copy_file(
    source: int, directory: CacheDirectory, records: list[Record], mode: int, is_stopped: Callable[[], bool]
) -> None:
    """Put a copy of a data file in its place.

    Args:
        source: of the copy.
        directory: of the data file.
        records: of what is copied; the rest of the copy is a hole.
        mode: of a directory whose permissions the copy takes over.
        is_stopped: asked now and then whether to give up.

    Raises:
        Aborted: it was; nothing has changed.
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
    """Opens a file, and makes it with the permissions that a directory of ``mode`` would have it."""
    try:
        fd = directory.create(name, flags)
    except FileExistsError:
        return directory.open(name, flags)
    os.fchmod(fd, mode & 0o666)
    return fd
