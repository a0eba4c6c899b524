"""A blob on its way into the cache: written in any order, read from the front while it grows."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import xxhash

from fastpull.cache.extents import Extents
from fastpull.cache.files import unique
from fastpull.cache.journal import RECORD_SIZE, Record, holds, read_records, replace_records
from fastpull.errors import CacheError, FastpullError, LockLost, from_os_error
from fastpull.tarstage import start_writeback
from fastpull.tasks import Aborted
from fastpull.writing import flush, pwrite_all

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

    def __init__(self, directory: str, digest: Digest, size: int, lock: FileLock, mode: int = 0o700) -> None:
        self.digest = digest
        self.size = size
        self.resumed = 0
        self.directory = directory
        self._mode = mode
        self._lock = lock
        self._extents = Extents()
        self._changed = threading.Condition()
        self._failure: BaseException | None = None
        self._data = self._journal = -1

    @property
    def data_path(self) -> str:
        """Where the bytes are."""
        return f"{self.directory}/data"

    @property
    def journal_path(self) -> str:
        """Where it stands which of them are there."""
        return f"{self.directory}/journal"

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
        with self._local_errors():
            os.makedirs(os.path.dirname(self.directory), exist_ok=True)  # a cache may be emptied at any time
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.directory, 0o700)
                os.chmod(self.directory, self._mode)  # whatever the umask
            records = read_records(self.journal_path, self.size)
            adopt(self.data_path, records, self._mode, is_stopped, always=self._lock.is_suspect)
            self._data = _open(self.data_path, os.O_RDWR, self._mode)
            scratch = bytearray(_CHECK_SIZE)
            sound = []
            for record in records:
                if is_stopped():
                    raise Aborted
                if holds(self._data, record, scratch):
                    sound.append(record)
                    self._extents.add(record.offset, record.offset + record.length)
            if not self._can_append(len(sound)):
                replace_records(self.journal_path, sound)
            self._journal = _open(self.journal_path, os.O_WRONLY | os.O_APPEND, self._mode)
            self.resumed = self._extents.total
            self._check_room()
            os.ftruncate(self._data, self.size)

    def _can_append(self, count: int) -> bool:
        """Whether the journal is nobody else's, and of so many records that are all true, or not there."""
        try:
            state = os.stat(self.journal_path)
        except FileNotFoundError:
            return True
        is_own = state.st_uid == os.geteuid() and not self._lock.is_suspect
        return is_own and state.st_size == count * RECORD_SIZE

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
        with self._local_errors():
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
        with self._local_errors():
            return os.preadv(self._data, [buffer[:available]], offset) if available > 0 else 0

    # --- the end

    def sync(self) -> None:
        """Waits until the bytes are on their disk."""
        with self._local_errors():
            os.fdatasync(self._data)

    def take(self, mode: int) -> str:
        """Takes the complete data file out of everybody's reach, and returns its new name.

        Args:
            mode: that it is to have.

        Raises:
            LockLost: the file of that name is somebody else's by now.
        """
        private = os.path.join(self.directory, f".data.{unique()}.{secrets.token_hex(8)}")
        with self._local_errors():
            self._lock.check()
            os.fchmod(self._data, mode)
            flush(self._data)
            os.rename(self.data_path, private)
            # whatever happened between check and rename, now it is known which file this is
            if not os.path.samestat(os.fstat(self._data), os.stat(private, follow_symlinks=False)):
                os.rename(private, self.data_path)
                raise LockLost(self.data_path, "somebody else has taken over this blob")
        return private

    def discard(self) -> None:
        """Removes the bytes and the journal, unless somebody else has taken over, and gives the lock back."""
        with self._local_errors(), contextlib.suppress(LockLost):
            self._lock.check()
            for path in (self.journal_path, self.data_path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        self.close()

    def close(self) -> None:
        """Gives the lock back and keeps what is there for the next process. May be called twice."""
        self.fail(CacheError(self.data_path, "closed while it was read"))
        for fd in (self._data, self._journal):
            if fd >= 0:
                os.close(fd)
        self._data = self._journal = -1
        if self._lock.held:
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
            path = error.filename if isinstance(error.filename, str) else self.data_path
            raise from_os_error(CacheError, error, path) from error


def is_damaged(directory: str, *, mend: bool) -> bool:
    """Whether ranges are not what the journal says; the caller holds the lock.

    A torn record at the end is what a kill leaves, and no damage.

    Args:
        directory: of the unfinished blob.
        mend: leave in the journal only what is true.

    Raises:
        OSError: the files cannot be read or written.
    """
    journal, scratch = f"{directory}/journal", bytearray(_CHECK_SIZE)
    try:
        with open(f"{directory}/data", "rb") as data:
            records = read_records(journal, os.fstat(data.fileno()).st_size)
            sound = [record for record in records if holds(data.fileno(), record, scratch)]
            damaged = os.stat(journal).st_size // RECORD_SIZE != len(sound)
    except FileNotFoundError:
        return False
    if damaged and mend:
        replace_records(journal, sound)
    return damaged


def adopt(path: str, records: list[Record], mode: int, is_stopped: Callable[[], bool], *, always: bool = False) -> None:
    """Puts a copy that belongs to this user in the place of another user's data file.

    Args:
        path: of the file; one that is not there is left alone.
        records: of what is copied; the rest of the copy is a hole.
        mode: of a directory whose permissions the copy takes over.
        is_stopped: asked now and then whether to give up.
        always: copy what is this user's own, too, and would be left alone.

    Raises:
        Aborted: it was; nothing has changed.
        OSError: the system refuses.
    """
    try:
        source = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        if always or os.fstat(source).st_uid != os.geteuid():
            folder, name = os.path.split(path)
            draft = os.path.join(folder, f".{name}.{unique()}")
            target = _open(draft, os.O_WRONLY, mode)
            try:
                for record in records:
                    _copy(source, target, record, is_stopped)
                os.rename(draft, path)
            except BaseException:
                os.unlink(draft)
                raise
            finally:
                os.close(target)
    finally:
        os.close(source)


def _copy(source: int, target: int, record: Record, is_stopped: Callable[[], bool]) -> None:
    stop = record.offset + record.length
    for at in range(record.offset, stop, _CHECK_SIZE):
        if is_stopped():
            raise Aborted
        pwrite_all(target, at, [os.pread(source, min(_CHECK_SIZE, stop - at), at)])


def _open(path: str, flags: int, mode: int) -> int:
    """Opens a file, and makes it with the permissions that a directory of ``mode`` would have it."""
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(fd, mode & 0o666)
    return fd
