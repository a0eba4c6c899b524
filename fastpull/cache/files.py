"""The files of a cache: paths, permissions, atomic writes of small files, listing."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator

from fastpull.cache.directory import CacheAccess, CacheDirectory
from fastpull.cache.errors import cache_errors
from fastpull.cache.locking.file_lock import FileLock
from fastpull.concurrency.writes import pwrite_all
from fastpull.errors import CacheError, InvalidDigest
from fastpull.oci.digest import ALGORITHMS, Digest

_VERSION = "v1"
_BY_DIGEST = ("blobs", "partial", "index", "images")
_DIRECTORIES = (*_BY_DIGEST, "answers", "checkpoints", "pins", "refs", "locks", "trash")
_USER = "user-"
_PERMISSIONS = 0o2777
_counter = itertools.count()

MAX_NOTE_SIZE = 1 << 20
"""Largest size of a small file that is read: metadata, reference, tag, pin. In bytes."""


class CacheFiles:
    """The directory ``<root>/v1`` and the directories in it.

    Every method opens the directories of a path below it one by one, see `fastpull.cache.directory`.

    Args:
        root: directory of the cache, created for its owner alone if it is missing. Entries below take over its
            permissions for group and others, so the mode of the root decides with whom a cache is shared.
        locks: locking method, see `FileLock`.

    Attributes:
        root: path of the cache with ``v1``.
        access: permissions of the cache.
        mode: mode of directories.
        file_mode: mode of published files: readable like the cache, and read-only.
        note_mode: mode of files that any user of the cache may touch to record a use.

    Raises:
        CacheError: from every method; the filesystem refuses, or a directory does not belong to this cache.
    """

    def __init__(self, root: str, locks: str = "auto") -> None:
        self._locks = locks
        self._top = os.path.abspath(root)
        self.root = os.path.join(self._top, _VERSION)
        with cache_errors():
            os.makedirs(self._top, mode=0o700, exist_ok=True)
            state = os.stat(self._top)
            self.access = CacheAccess(state.st_uid, state.st_mode & _PERMISSIONS)
            self.mode = self.access.mode
            for directory in _DIRECTORIES:
                with self.directory(directory, create=True) as opened:
                    for algorithm in ALGORITHMS if directory in _BY_DIGEST else ():
                        opened.subdirectory(algorithm, self.mode).close()
        self.file_mode = self.mode & 0o444
        self.note_mode = self.mode & 0o666

    @property
    def is_shared(self) -> bool:
        """Whether users other than the owner may write to the cache."""
        return self.access.is_shared

    # --- paths

    def path(self, directory: str, digest: Digest) -> str:
        """Return the path of an entry named by a digest."""
        return os.path.join(self.root, directory, digest.algorithm, digest.encoded)

    def user_directory(self, directory: str, user: int | None = None) -> str:
        """Return the path for entries that count because of their author: in a shared cache, a directory per user.

        Write access to a directory is enough to rename the files in it. So only one user may write to each of these.

        Args:
            directory: name of a directory of the cache.
            user: number of the user; this user by default.
        """
        place = os.path.join(self.root, directory)
        return (
            os.path.join(place, user_directory_name(os.geteuid() if user is None else user))
            if self.is_shared
            else place
        )

    def directory(self, *names: str, create: bool = False) -> CacheDirectory:
        """Open a directory.

        Args:
            *names: path components below ``v1``.
            create: create missing directories; a cache may be emptied at any time.

        Raises:
            OSError: it is missing, or cannot be opened.
        """
        if create:
            os.makedirs(self._top, mode=0o700, exist_ok=True)
        opened = CacheDirectory.at(self._top, self.access)
        for name in (_VERSION, *names):
            with opened:
                inner = opened.subdirectory(name, _mode_of(names[:1], name, self.mode) if create else None)
                if name.startswith(_USER) and not _belongs_to_its_user(inner, name):
                    inner.close()
                    if not create:
                        raise FileNotFoundError(errno.ENOENT, "another user created this directory", inner.path)
                    opened.rename(name, opened, f".{name}.{unique()}")
                    inner = opened.subdirectory(name, _mode_of(names[:1], name, self.mode))
            opened = inner
        return opened

    @contextlib.contextmanager
    def at(self, path: str, *, create: bool = False) -> Iterator[tuple[CacheDirectory, str]]:
        """Open the parent directory of a path below ``v1``, and yield it with the last component."""
        *names, name = os.path.relpath(path, self.root).split(os.sep)
        with self.directory(*names, create=create) as directory:
            yield directory, name

    def blob_lock(self, digest: Digest) -> FileLock:
        """Return the lock for writing a blob."""
        return self.lock(f"{digest.algorithm}-{digest.encoded}")

    def lock(self, name: str) -> FileLock:
        """Return the lock of a name."""
        path = os.path.join(self.root, "locks", name)
        return FileLock(path, self.note_mode, self._locks, lambda create: self.directory("locks", create=create))

    def time(self, *names: str) -> float:
        """Return the time of the filesystem as seen in a directory. Raise OSError."""
        with self.directory(*names, create=True) as directory:
            return directory.time()

    # --- files

    def names(self, *names: str) -> list[str]:
        """Return the names in a directory, sorted; none if it is missing or may not be listed."""
        with cache_errors():
            try:
                with self.directory(*names) as directory:
                    return directory.names()
            except (FileNotFoundError, PermissionError):
                return []

    def entries(self, *names: str, nested: bool = True) -> Iterator[tuple[str, str, os.stat_result]]:
        """Iterate over the visible files of a directory as (subdirectory, name, state).

        Files that vanish meanwhile are skipped.
        """
        inner_names = [name for name in self.names(*names) if not name.startswith(".")] if nested else [""]
        for inner in inner_names:
            found = list[tuple[str, str, os.stat_result]]()
            missing = contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError)
            with cache_errors(), missing, self._subdirectory(names, inner) as directory:
                for name in directory.names():
                    state = None if name.startswith(".") else directory.lookup(name)
                    if state is not None:
                        found.append((inner, name, state))
            yield from found

    def _subdirectory(self, names: tuple[str, ...], inner: str) -> CacheDirectory:
        try:
            return self.directory(*names, inner) if inner else self.directory(*names)
        except CacheError as error:
            if not inner:
                raise
            raise NotADirectoryError(errno.ENOTDIR, error.reason) from error  # a foreign entry

    def lookup(self, path: str) -> os.stat_result | None:
        """Return the state of a path without following a symbolic link; None if it does not exist."""
        with cache_errors():
            try:
                with self.at(path) as (directory, name):
                    return directory.lookup(name)
            except FileNotFoundError:
                return None

    def open(self, path: str) -> int | None:
        """Open a regular file for reading; return None if it is missing.

        Raises:
            NotAFile: it is not a regular file.
            OSError: the system refuses.
        """
        try:
            with self.at(path) as (directory, name):
                return directory.open(name)
        except FileNotFoundError:
            return None

    def read(self, path: str, max_size: int = MAX_NOTE_SIZE) -> bytes | None:
        """Return the content of a small file; None if it is missing, not a regular file, or too large."""
        found = self.read_with_state(path, max_size)
        return None if found is None else found[0]

    def read_with_state(self, path: str, max_size: int = MAX_NOTE_SIZE) -> tuple[bytes, os.stat_result] | None:
        """Return the result of `read` with the state of the file."""
        with cache_errors():
            try:
                with self.at(path) as (directory, name):
                    return directory.read(name, max_size)
            except FileNotFoundError:
                return None

    def write(self, path: str, content: bytes, sync: bool = False, mode: int | None = None) -> None:
        """Write a small file atomically.

        Args:
            path: path of the file; an existing one is replaced.
            content: content of the file.
            sync: wait until file and name are on disk.
            mode: mode of the file; `file_mode` by default.
        """
        with cache_errors(), self.at(path, create=True) as (directory, name):
            draft = f".{name[:64]}.{unique()}"
            fd = directory.create(draft, os.O_WRONLY)
            try:
                try:
                    pwrite_all(fd, 0, [content])
                    os.fchmod(fd, self.file_mode if mode is None else mode)
                    if sync:
                        os.fsync(fd)
                finally:
                    os.close(fd)
                directory.publish(draft, directory, name)
            except BaseException:
                with contextlib.suppress(OSError):
                    directory.unlink(draft)
                raise
            if sync:
                directory.sync()

    def touch(self, path: str) -> None:
        """Record the use of a file, if permissions allow."""
        with contextlib.suppress(OSError, CacheError), self.at(path) as (directory, name):
            directory.touch(name)

    def move_to_trash(self, path: str, why: str) -> bool:
        """Move a file to ``trash``, and return whether it existed. Open descriptors of it stay valid."""
        with cache_errors():
            try:
                with self.at(path) as (directory, name):
                    if directory.lookup(name) is None:
                        return False
                    with self.directory("trash", create=True) as trash:
                        directory.rename(name, trash, f"{name[:128]}.{unique()}.{why}")
            except FileNotFoundError:
                return False
        return True

    def open_scratch(self) -> int:
        """Open an empty file without a name. It vanishes when its descriptor is closed or the process dies."""
        with cache_errors(), self.directory(create=True) as directory:
            with contextlib.suppress(OSError):  # not every filesystem can: NFS, some overlays
                return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=directory.fd)
            name = f".scratch.{unique()}"
            fd = directory.create(name)
            directory.unlink(name)
            return fd

    def unlink(self, path: str) -> None:
        """Remove a file if it exists."""
        with cache_errors(), contextlib.suppress(FileNotFoundError), self.at(path) as (directory, name):
            directory.unlink(name)

    def remove(self, path: str) -> None:
        """Remove an entry of any type, without following symbolic links."""
        with cache_errors(), contextlib.suppress(FileNotFoundError), self.at(path) as (directory, name):
            directory.remove(name)


def user_directory_name(user: int) -> str:
    """Return the name of the directory of a user within a directory of the cache."""
    return f"{_USER}{user}"


def digest_of(algorithm: str, name: str) -> Digest | None:
    """Return the digest that is the name of a file; None for any other name."""
    try:
        return Digest(algorithm, name)
    except InvalidDigest:
        return None


def unique() -> str:
    """Return a part of a name that is unique on this host at this time."""
    return f"{os.getpid()}.{next(_counter)}"


def _mode_of(parents: tuple[str, ...], name: str, mode: int) -> int:
    """Return the mode of a directory. Other users may read a user's references, and nothing else of that user."""
    if not name.startswith(_USER):
        return mode
    return mode & 0o2755 | 0o700 if parents == ("refs",) else 0o700


def _belongs_to_its_user(directory: CacheDirectory, name: str) -> bool:
    """Return whether a user's directory belongs to that user, and no other user may write to it."""
    state = directory.state()
    return name == user_directory_name(state.st_uid) and not stat.S_IMODE(state.st_mode) & 0o022
