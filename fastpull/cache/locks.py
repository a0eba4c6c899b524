"""File locks that die with their process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os

from fastpull.errors import CacheError, from_os_error

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_POLL_SECONDS = 0.05  # a waiting pull takes over this soon after its leader has died


class FileLock:
    """An exclusive ``flock`` on a file that exists only while somebody holds or wants it.

    It excludes tasks of one process as well as processes, and on network filesystems that support it, nodes. Death of
    the process releases it.

    Args:
        path: of the lock file; its directory exists.
        mode: of the file, whatever the umask: who may not write to it cannot wait for it.
    """

    def __init__(self, path: str, mode: int = 0o600) -> None:
        self.path = path
        self._mode = mode
        self._fd = -1

    @property
    def held(self) -> bool:
        """Whether this object holds the lock."""
        return self._fd >= 0

    @property
    def is_there(self) -> bool:
        """Whether somebody holds or wants the lock, or has died with it."""
        return os.path.lexists(self.path)

    def try_acquire(self) -> bool:
        """Takes the lock if it is free.

        Raises:
            CacheError: the lock file cannot be made, or the filesystem has no locks, or none that exclude anybody.
        """
        while True:
            try:
                try:
                    fd = self._create()
                except FileExistsError:
                    fd = os.open(self.path, _FLAGS)
            except OSError as error:
                if error.errno == errno.ENOENT and os.path.isdir(os.path.dirname(self.path)):
                    continue  # its holder has just removed it
                if isinstance(error, PermissionError) and os.path.lexists(self.path):
                    return False  # another user's, who has not given it its mode yet
                raise from_os_error(CacheError, error, self.path) from error
            try:
                if not self._lock(fd):
                    os.close(fd)
                    return False
                if self._is_current(fd):
                    self._check(fd)
                    self._fd = fd
                    return True
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # its holder removed it between our open and our lock

    async def acquire(self) -> None:
        """Waits for the lock, without blocking the loop."""
        while not self.try_acquire():  # noqa: ASYNC110  # flock has no event
            await asyncio.sleep(_POLL_SECONDS)

    def release(self) -> None:
        """Gives the lock back and removes its file. May be called twice."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            os.close(self._fd)
            self._fd = -1

    def _lock(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            if error.errno in _NO_LOCKS:
                raise CacheError(self.path, "this filesystem has no locks", errno.ENOLCK) from error
            raise from_os_error(CacheError, error, self.path) from error
        return True

    def _check(self, held: int) -> None:
        """Some filesystems grant every lock to everybody: two pulls would write into one file."""
        try:
            other = os.open(f"/proc/self/fd/{held}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise from_os_error(CacheError, error, self.path) from error
        try:
            if self._lock(other):
                raise CacheError(self.path, "this filesystem's locks exclude nobody", errno.ENOLCK)
        finally:
            os.close(other)

    def _create(self) -> int:
        fd = os.open(self.path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        os.fchmod(fd, self._mode)
        return fd

    def _is_current(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self.path, follow_symlinks=False))
        except FileNotFoundError:
            return False
