"""Folders of a cache, opened by descriptor: a name in one is used relative to it, and links are never followed.

Whoever may write to a shared cache can put anything in the place of a folder or file: a link to somewhere else, a FIFO,
a device, a file without end. So every folder below the cache's own directory is opened component by component with
``O_NOFOLLOW`` and looked at before it is used, and every file is opened without waiting and has to be a regular one.
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

_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITABLE_BY_OTHERS = 0o022
_READ_SIZE = 1 << 20


class NotAFile(OSError):
    """A name that should be a regular file's is a link's, directory's, FIFO's, socket's or device's."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EINVAL, "not a regular file", path)


@dataclass(frozen=True, slots=True)
class CacheAccess:
    """Who may do what in a cache, by the owner and mode of its own directory.

    Attributes:
        owner: of the directory; trusted with everything in the cache.
        mode: permissions of the directory, with the set-group-ID bit; those of its folders.
    """

    owner: int
    mode: int

    @property
    def is_shared(self) -> bool:
        """Whether others than its owner may write to the cache."""
        return bool(self.mode & _WRITABLE_BY_OTHERS)

    def trusts(self, user: int) -> bool:
        """Whether a user's word counts: one's own, root's and that of the cache's owner."""
        return user in (os.geteuid(), 0, self.owner)

    def check(self, state: os.stat_result, path: str) -> None:
        """Check that a folder belongs to this cache.

        Raises:
            CacheError: another user owns it, or others may write to it, and the cache is not shared with them.
        """
        if not self.is_shared and not self.trusts(state.st_uid):
            reason = f"this folder belongs to user {state.st_uid}, with whom the cache is not shared; remove it"
            raise CacheError(path, reason, errno.EPERM)
        extra = stat.S_IMODE(state.st_mode) & ~self.mode & _WRITABLE_BY_OTHERS
        # behind a cache's directory that they cannot enter permissions mean nothing
        if extra & (self.mode << 1 & _WRITABLE_BY_OTHERS):
            reason = "others may write to this folder than to the cache; change its mode to that of the cache"
            raise CacheError(path, reason, errno.EPERM)


class CacheFolder:
    """A folder, open. Closed by `close` or at the end of its context.

    Args:
        fd: of the folder, taken over.
        path: of the folder, for messages.
        access: of the cache; None outside caches, where nothing is checked.

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
        """Open a folder by its path, whose links are followed: a cache's own path is its user's choice."""
        return cls(os.open(path, os.O_PATH | _FOLDER), path, access)

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
        """Complete the path in a system error."""
        try:
            yield
        except OSError as error:
            if not isinstance(error, CacheError):
                error.filename = os.path.join(self.path, name) if name else self.path
                error.filename2 = None
            raise

    # --- folders

    def inner(self, name: str, mode: int | None = None) -> CacheFolder:
        """Open a folder in this one.

        Args:
            name: of the folder.
            mode: make it with these permissions, whatever the umask, if it is missing.

        Raises:
            CacheError: it is not a folder, or not one of this cache.
        """
        path = os.path.join(self.path, name)
        with self._named(name):
            is_new = False
            try:
                try:
                    fd = self._open_inner(name, os.O_PATH)
                except FileNotFoundError:
                    if mode is None:
                        raise
                    is_new = self._make_folder(name)
                    fd = self._open_inner(name, os.O_RDONLY if is_new else os.O_PATH)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise CacheError(path, "this is not a folder, remove it", errno.ENOTDIR) from error
                raise
            found = CacheFolder(fd, path, self._access)
            try:
                if is_new and mode is not None:
                    os.fchmod(fd, mode)
                if self._access is not None:
                    self._access.check(os.fstat(fd), path)
            except BaseException:
                found.close()
                raise
            return found

    def _open_inner(self, name: str, flags: int) -> int:
        return os.open(name, flags | _FOLDER | os.O_NOFOLLOW, dir_fd=self.fd)

    def _make_folder(self, name: str) -> bool:
        try:
            os.mkdir(name, 0o700, dir_fd=self.fd)
        except FileExistsError:
            return False
        return True

    def names(self) -> list[str]:
        """Return all names in this folder, sorted."""
        with self._named(""):
            fd = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=self.fd)
            try:
                return sorted(os.listdir(fd))
            finally:
                os.close(fd)

    def sync(self) -> None:
        """Wait until the names in this folder are on the disk."""
        with self._named(""):
            fd = os.open(".", os.O_RDONLY | _FOLDER, dir_fd=self.fd)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def state(self) -> os.stat_result:
        """Return owner and mode of this folder."""
        return os.fstat(self.fd)

    def time(self) -> float:
        """Return the filesystem's time, in seconds since the epoch: clocks of nodes differ, and are not compared."""
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
            NotAFile: it is something else.
        """
        path = os.path.join(self.path, name)
        with self._named(name):
            try:
                fd = os.open(name, flags | _FILE, dir_fd=self.fd)
            except OSError as error:
                # a link; a directory that is to be written to; a socket, or a FIFO that nobody reads; no such device
                if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV):
                    raise NotAFile(path) from error
                raise
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise NotAFile(path)
            return fd

    def create(self, name: str, flags: int = os.O_RDWR) -> int:
        """Create a file that only this user may open; raise FileExistsError where the name is taken."""
        with self._named(name):
            return os.open(name, flags | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=self.fd)

    def lookup(self, name: str) -> os.stat_result | None:
        """Return the state of what has a name, without following a link; None where nothing has it."""
        with self._named(name):
            try:
                return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            except FileNotFoundError:
                return None

    def read(self, name: str, max_size: int) -> tuple[bytes, os.stat_result] | None:
        """Return content and state of a file; None where there is none, or one that is larger than ``max_size``."""
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

    def rename(self, name: str, folder: CacheFolder, new: str) -> None:
        """Move what has a name into a folder, under a new name."""
        with self._named(name):
            os.rename(name, new, src_dir_fd=self.fd, dst_dir_fd=folder.fd)

    def publish(self, name: str, folder: CacheFolder, new: str) -> None:
        """Move a file into a folder as `rename` does; a directory that has the name there goes."""
        try:
            self.rename(name, folder, new)
        except IsADirectoryError:
            folder.remove(new)
            self.rename(name, folder, new)

    def link(self, name: str, new: str) -> None:
        """Give a file of this folder a second name in it."""
        with self._named(new):
            os.link(name, new, src_dir_fd=self.fd, dst_dir_fd=self.fd, follow_symlinks=False)

    def touch(self, name: str) -> None:
        """Note that a file was used."""
        with self._named(name):
            os.utime(name, dir_fd=self.fd, follow_symlinks=False)

    def unlink(self, name: str) -> bool:
        """Remove a file; return whether it was there."""
        with self._named(name):
            try:
                os.unlink(name, dir_fd=self.fd)
            except FileNotFoundError:
                return False
            return True

    def remove(self, name: str) -> None:
        """Remove whatever has a name, a folder with all that is in it; nothing behind a link, no mounted filesystem."""
        try:
            self.unlink(name)
        except (IsADirectoryError, PermissionError):
            with self._named(name):
                number = remove_tree(self.fd, os.fsencode(name))
                if number and number != errno.ENOENT:
                    raise OSError(number, os.strerror(number)) from None

    def remove_empty(self, name: str) -> None:
        """Remove a folder of this one, if nothing is in it."""
        with self._named(name):
            os.rmdir(name, dir_fd=self.fd)
