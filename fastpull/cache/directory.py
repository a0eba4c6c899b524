"""Directories of a cache, opened by descriptor. Names are used relative to it, and symbolic links are never followed.

Users with write access to a shared cache can replace a directory or file by a symbolic link, a FIFO, a device or an
endless file. So every directory below the cache's own directory is opened component by component with ``O_NOFOLLOW``
and checked before use. Every file is opened without blocking and must be a regular file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from fastpull.errors import CacheError
from fastpull.native import remove_tree

_DIRECTORY = os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITABLE_BY_OTHERS = 0o022
_READ_SIZE = 1 << 20


class NotAFile(OSError):
    """A symbolic link, directory, FIFO, socket or device where a regular file is expected."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "not a regular file", path)


@dataclass(frozen=True, slots=True)
class CacheAccess:
    """The permissions of a cache, by the owner and mode of its own directory.

    Attributes:
        owner: the owner of the directory, trusted with everything in the cache.
        mode: the permissions of the directory with the set-group-ID bit, also used for the directories below.
    """

    owner: int
    mode: int

    @property
    def is_shared(self) -> bool:
        """Whether users other than the owner may write to the cache."""
        return bool(self.mode & _WRITABLE_BY_OTHERS)

    def trusts(self, user: int) -> bool:
        """Return whether the entries of a user count: this user, root and the owner of the cache."""
        return user in (os.geteuid(), 0, self.owner)

    def check(self, state: os.stat_result, path: str) -> None:
        """Check that a directory belongs to this cache.

        Raises:
            CacheError: a user with whom the cache is not shared owns it or may write to it.
        """
        if not self.is_shared and not self.trusts(state.st_uid):
            reason = f"the directory belongs to user {state.st_uid}, with whom the cache is not shared; remove it"
            raise CacheError(path, reason, errno.EPERM)
        extra = stat.S_IMODE(state.st_mode) & ~self.mode & _WRITABLE_BY_OTHERS
        # permissions below are irrelevant for users who cannot enter the cache's own directory
        if extra & (self.mode << 1 & _WRITABLE_BY_OTHERS):
            reason = "more users may write to this directory than to the cache; change its mode to that of the cache"
            raise CacheError(path, reason, errno.EPERM)


class CacheDirectory:
    """An open directory, closed by `close` or at the end of its context.

    Args:
        fd: descriptor of the directory; this object owns it.
        path: path of the directory, for messages.
        access: permissions of the cache; None outside a cache, where nothing is checked.

    Raises:
        OSError: from every method, with the full path.
    """

    __slots__ = ("_access", "fd", "path")

    def __init__(self, fd: int, path: str, access: CacheAccess | None = None) -> None:
        self.fd = fd
        self.path = path
        self._access = access

    @classmethod
    def at(cls, path: str, access: CacheAccess | None = None) -> Self:
        """Open a directory by path, following symbolic links: the user chooses the path of the cache."""
        return cls(os.open(path, os.O_PATH | _DIRECTORY), path, access)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    @contextlib.contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Add the full path to an OSError."""
        try:
            yield
        except OSError as error:
            if not isinstance(error, CacheError):
                error.filename = os.path.join(self.path, name) if name else self.path
                error.filename2 = None
            raise

    # --- directories

    def subdirectory(self, name: str, mode: int | None = None) -> CacheDirectory:
        """Open a directory in this one.

        Args:
            name: name of the directory.
            mode: permissions, independent of the umask, for creating the directory if it is missing.

        Raises:
            CacheError: it is not a directory, or does not belong to this cache.
        """
        path = os.path.join(self.path, name)
        with self._named(name):
            is_new = False
            try:
                try:
                    fd = self._open_subdirectory(name, os.O_PATH)
                except FileNotFoundError:
                    if mode is None:
                        raise
                    is_new = self._make_directory(name)
                    fd = self._open_subdirectory(name, os.O_RDONLY if is_new else os.O_PATH)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise CacheError(path, "not a directory; remove it", errno.ENOTDIR) from error
                raise
            found = CacheDirectory(fd, path, self._access)
            try:
                if is_new and mode is not None:
                    os.fchmod(fd, mode)
                if self._access is not None:
                    self._access.check(os.fstat(fd), path)
            except BaseException:
                found.close()
                raise
            return found

    def _open_subdirectory(self, name: str, flags: int) -> int:
        return os.open(name, flags | _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.fd)

    def _make_directory(self, name: str) -> bool:
        try:
            os.mkdir(name, 0o700, dir_fd=self.fd)
        except FileExistsError:
            return False
        return True

    def names(self) -> list[str]:
        """Return all names in this directory, sorted."""
        with self._named(""):
            fd = os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=self.fd)
            try:
                return sorted(os.listdir(fd))
            finally:
                os.close(fd)

    def sync(self) -> None:
        """Wait until the names in this directory are on disk."""
        with self._named(""):
            fd = os.open(".", os.O_RDONLY | _DIRECTORY, dir_fd=self.fd)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def state(self) -> os.stat_result:
        """Return owner and mode of this directory."""
        return os.fstat(self.fd)

    def time(self) -> float:
        """Return the time of the filesystem, in seconds since the epoch.

        It serves all nodes, whose own clocks may differ.
        """
        name = f".{secrets.token_hex(16)}"
        fd = self.create(name)
        try:
            self.unlink(name)
            return os.fstat(fd).st_mtime
        finally:
            os.close(fd)

    # --- files

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Open a regular file.

        Raises:
            NotAFile: it is not a regular file.
        """
        path = os.path.join(self.path, name)
        with self._named(name):
            try:
                fd = os.open(name, flags | _FILE, dir_fd=self.fd)
            except OSError as error:
                # a link; a directory opened for writing; a socket, or a FIFO without a reader; no such device
                if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV):
                    raise NotAFile(path) from error
                raise
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise NotAFile(path)
            return fd

    def create(self, name: str, flags: int = os.O_RDWR) -> int:
        """Create a file that only this user may open. Raise FileExistsError if the name exists."""
        with self._named(name):
            return os.open(name, flags | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=self.fd)

    def lookup(self, name: str) -> os.stat_result | None:
        """Return the state of a name without following a symbolic link; None if the name does not exist."""
        with self._named(name):
            try:
                return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            except FileNotFoundError:
                return None

    def read(self, name: str, max_size: int) -> tuple[bytes, os.stat_result] | None:
        """Return content and state of a file; None if it is missing or larger than ``max_size``."""
        try:
            fd = self.open(name)
        except (FileNotFoundError, NotAFile):
            return None
        with self._named(name):
            try:
                state, pieces, at = os.fstat(fd), list[bytes](), 0
                while at <= max_size and (piece := os.pread(fd, min(max(state.st_size, 1), _READ_SIZE), at)):
                    pieces.append(piece)
                    at += len(piece)
            finally:
                os.close(fd)
        return None if at > max_size or state.st_size > max_size else (b"".join(pieces), state)

    def rename(self, name: str, directory: CacheDirectory, new: str) -> None:
        """Move an entry into a directory under a new name."""
        with self._named(name):
            os.rename(name, new, src_dir_fd=self.fd, dst_dir_fd=directory.fd)

    def publish(self, name: str, directory: CacheDirectory, new: str) -> None:
        """Move a file into a directory as `rename` does. A directory of the new name is removed first."""
        try:
            self.rename(name, directory, new)
        except IsADirectoryError:
            directory.remove(new)
            self.rename(name, directory, new)

    def link(self, name: str, new: str) -> None:
        """Create a second name for a file in this directory."""
        with self._named(new):
            os.link(name, new, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)

    def touch(self, name: str) -> None:
        """Set the times of a file to now, to record its use."""
        with self._named(name):
            os.utime(name, dir_fd=self.fd, follow_symlinks=False)

    def unlink(self, name: str) -> bool:
        """Remove a file, and return whether it existed."""
        with self._named(name):
            try:
                os.unlink(name, dir_fd=self.fd)
            except FileNotFoundError:
                return False
            return True

    def remove(self, name: str) -> None:
        """Remove an entry, recursively if it is a directory. Symbolic links and mounted filesystems are left alone."""
        try:
            self.unlink(name)
        except (IsADirectoryError, PermissionError):
            with self._named(name):
                number = remove_tree(self.fd, os.fsencode(name))
                if number and number != errno.ENOENT:
                    raise OSError(number, os.strerror(number)) from None

    def remove_empty(self, name: str) -> None:
        """Remove a directory in this one if it is empty."""
        with self._named(name):
            os.rmdir(name, dir_fd=self.fd)
