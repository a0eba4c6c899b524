"""The files of a cache: where they are, what permissions they have, how a small one is written and a folder listed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator

from fastpull.cache.folder import CacheAccess, CacheFolder
from fastpull.cache.locking.file_lock import FileLock
from fastpull.concurrency.writes import pwrite_all
from fastpull.errors import CacheError, FastpullError, InvalidDigest, from_os_error
from fastpull.oci.digest import ALGORITHMS, Digest

_VERSION = "v1"
_BY_DIGEST = ("blobs", "partial", "index", "images")
_FOLDERS = (*_BY_DIGEST, "answers", "pins", "refs", "locks", "trash")
_USER = "user-"
_PERMISSIONS = 0o2777
_counter = itertools.count()

MAX_NOTE_SIZE = 1 << 20
"""Bytes of the largest small file that is read: a seal, a reference, an answer, a pin."""


class CacheFiles:
    """The directory ``<root>/v1`` and its folders.

    Paths below it are addresses: every method opens the folders on the way by descriptor, see `fastpull.cache.folder`.

    Args:
        root: made if it is missing, for its owner alone. Folders and files in it take over the root's permissions
            for group and others, so that a site can share a cache by the root's mode.
        locks: the way of its locks, see `FileLock`.

    Attributes:
        root: with ``v1``.
        access: of the root.
        mode: of folders.
        file_mode: of what is published: for all who may read the cache, and not to be written to.
        note_mode: of what whoever shares the cache may touch to say that they used it.

    Raises:
        CacheError: from every method, where the filesystem refuses, or a folder is not one of this cache.
    """

    def __init__(self, root: str, locks: str = "auto") -> None:
        self._locks = locks
        self._top = os.path.abspath(root)
        self.root = os.path.join(self._top, _VERSION)
        with local_errors():
            os.makedirs(self._top, mode=0o700, exist_ok=True)
            state = os.stat(self._top)
            self.access = CacheAccess(state.st_uid, state.st_mode & _PERMISSIONS)
            self.mode = self.access.mode
            for folder in _FOLDERS:
                with self.folder(folder, create=True) as opened:
                    for algorithm in ALGORITHMS if folder in _BY_DIGEST else ():
                        opened.inner(algorithm, self.mode).close()
        self.file_mode = self.mode & 0o444
        self.note_mode = self.mode & 0o666

    @property
    def is_shared(self) -> bool:
        """Whether others than its owner may write to the cache."""
        return self.access.is_shared

    # --- places

    def path(self, folder: str, digest: Digest) -> str:
        """Where something that is named by a digest is, or would be."""
        return os.path.join(self.root, folder, digest.algorithm, digest.encoded)

    def user_folder(self, folder: str, user: int | None = None) -> str:
        """Return the path of what counts because of who wrote it: in a shared cache a folder for each user.

        Whoever may write to a folder can rename the files in it, and put one of somebody's under a name that this
        user never gave it. So nobody else may write to these.

        Args:
            folder: of the cache.
            user: whose; by default this one's.
        """
        place = os.path.join(self.root, folder)
        return (
            os.path.join(place, user_folder_name(os.geteuid() if user is None else user)) if self.is_shared else place
        )

    def folder(self, *names: str, create: bool = False) -> CacheFolder:
        """Open a folder.

        Args:
            *names: of the folders on the way from ``v1``.
            create: make what is missing: a cache may be emptied at any time.

        Raises:
            OSError: it is missing, or cannot be opened.
        """
        if create:
            os.makedirs(self._top, mode=0o700, exist_ok=True)
        opened = CacheFolder.at(self._top, self.access)
        for name in (_VERSION, *names):
            with opened:
                inner = opened.inner(name, _mode_of(names[:1], name, self.mode) if create else None)
                if name.startswith(_USER) and not _is_user_s_own(inner, name):
                    inner.close()
                    if not create:
                        raise FileNotFoundError(errno.ENOENT, "another user has made this folder", inner.path)
                    opened.rename(name, opened, f".{name}.{unique()}")
                    inner = opened.inner(name, _mode_of(names[:1], name, self.mode))
            opened = inner
        return opened

    @contextlib.contextmanager
    def at(self, path: str, *, create: bool = False) -> Iterator[tuple[CacheFolder, str]]:
        """Open the folder of a path below ``v1``; give it and the last name."""
        *names, name = os.path.relpath(path, self.root).split(os.sep)
        with self.folder(*names, create=create) as folder:
            yield folder, name

    def blob_lock(self, digest: Digest) -> FileLock:
        """The lock that whoever writes a blob holds."""
        return self.lock(f"{digest.algorithm}-{digest.encoded}")

    def lock(self, name: str) -> FileLock:
        """The lock of that name."""
        path = os.path.join(self.root, "locks", name)
        return FileLock(path, self.note_mode, self._locks, lambda create: self.folder("locks", create=create))

    def time(self, *names: str) -> float:
        """Return the filesystem's time, as a folder has it. Raises OSError."""
        with self.folder(*names, create=True) as folder:
            return folder.time()

    # --- files

    def names(self, *names: str) -> list[str]:
        """Return what is in a folder, sorted; nothing where there is none, or only another user may look into it."""
        with local_errors():
            try:
                with self.folder(*names) as folder:
                    return folder.names()
            except (FileNotFoundError, PermissionError):
                return []

    def listed(self, *names: str, nested: bool = True) -> Iterator[tuple[str, str, os.stat_result]]:
        """The visible files of a folder as (subfolder, name, state); those that vanish meanwhile are passed over."""
        inner_names = [name for name in self.names(*names) if not name.startswith(".")] if nested else [""]
        for inner in inner_names:
            found = list[tuple[str, str, os.stat_result]]()
            missing = contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError)
            with local_errors(), missing, self._inner_folder(names, inner) as folder:
                for name in folder.names():
                    state = None if name.startswith(".") else folder.lookup(name)
                    if state is not None:
                        found.append((inner, name, state))
            yield from found

    def _inner_folder(self, names: tuple[str, ...], inner: str) -> CacheFolder:
        try:
            return self.folder(*names, inner) if inner else self.folder(*names)
        except CacheError as error:
            if not inner:
                raise
            raise NotADirectoryError(errno.ENOTDIR, error.reason) from error  # something planted beside the rest

    def lookup(self, path: str) -> os.stat_result | None:
        """Return the state of what has a path, without following a link; None where there is nothing."""
        with local_errors():
            try:
                with self.at(path) as (folder, name):
                    return folder.lookup(name)
            except FileNotFoundError:
                return None

    def open(self, path: str) -> int | None:
        """Open a regular file for reading; None where there is none.

        Raises:
            NotAFile: it is something else.
            OSError: the system refuses.
        """
        try:
            with self.at(path) as (folder, name):
                return folder.open(name)
        except FileNotFoundError:
            return None

    def read(self, path: str, max_size: int = MAX_NOTE_SIZE) -> bytes | None:
        """The content of a small file; None where there is none, and for what is no file or too large for one."""
        found = self.read_with_state(path, max_size)
        return None if found is None else found[0]

    def read_with_state(self, path: str, max_size: int = MAX_NOTE_SIZE) -> tuple[bytes, os.stat_result] | None:
        """Return what `read` does, and owner and times of the file."""
        with local_errors():
            try:
                with self.at(path) as (folder, name):
                    return folder.read(name, max_size)
            except FileNotFoundError:
                return None

    def write(self, path: str, content: bytes, sync: bool = False, mode: int | None = None) -> None:
        """Writes a small file that appears whole or not at all.

        Args:
            path: replaced if it is there.
            content: of the file.
            sync: wait until it is on the disk.
            mode: of the file; by default that of what is published.
        """
        with local_errors(), self.at(path, create=True) as (folder, name):
            draft = f".{name[:64]}.{unique()}"
            fd = folder.create(draft, os.O_WRONLY)
            try:
                try:
                    pwrite_all(fd, 0, [content])
                    os.fchmod(fd, self.file_mode if mode is None else mode)
                    if sync:
                        os.fsync(fd)
                finally:
                    os.close(fd)
                folder.publish(draft, folder, name)
            except BaseException:
                with contextlib.suppress(OSError):
                    folder.unlink(draft)
                raise
            if sync:
                folder.sync()

    def touch(self, path: str) -> None:
        """Note that a file was used, as far as this user may."""
        with contextlib.suppress(OSError, CacheError), self.at(path) as (folder, name):
            folder.touch(name)

    def discard(self, path: str, why: str) -> bool:
        """Moves a file to ``trash``; says whether it was there. Whoever has it open can read on."""
        with local_errors():
            try:
                with self.at(path) as (folder, name):
                    if folder.lookup(name) is None:
                        return False
                    with self.folder("trash", create=True) as trash:
                        folder.rename(name, trash, f"{name[:128]}.{unique()}.{why}")
            except FileNotFoundError:
                return False
        return True

    def open_scratch(self) -> int:
        """Opens an empty file without a name, which is gone when its descriptor is closed, whoever dies meanwhile."""
        with local_errors(), self.folder(create=True) as folder:
            with contextlib.suppress(OSError):  # not every filesystem can: NFS, some overlays
                return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=folder.fd)
            name = f".scratch.{unique()}"
            fd = folder.create(name)
            folder.unlink(name)
            return fd

    def unlink(self, path: str) -> None:
        """Removes a file, if it is there."""
        with local_errors(), contextlib.suppress(FileNotFoundError), self.at(path) as (folder, name):
            folder.unlink(name)

    def remove(self, path: str) -> None:
        """Remove whatever has a path; nothing behind a link."""
        with local_errors(), contextlib.suppress(FileNotFoundError), self.at(path) as (folder, name):
            folder.remove(name)


@contextlib.contextmanager
def local_errors() -> Iterator[None]:
    """Makes ours of what the system says about a cache."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FastpullError):
            raise
        raise from_os_error(CacheError, error) from error


def user_folder_name(user: int) -> str:
    """Return the name of a user's own folder in a folder of the cache."""
    return f"{_USER}{user}"


def digest_of(algorithm: str, name: str) -> Digest | None:
    """The digest that a file is named by; None for any other name."""
    try:
        return Digest(algorithm, name)
    except InvalidDigest:
        return None


def unique() -> str:
    """A part of a name that nothing else on this host has at this time."""
    return f"{os.getpid()}.{next(_counter)}"


def _mode_of(parents: tuple[str, ...], name: str, mode: int) -> int:
    """Permissions of a folder; references of another user are read, what else is a user's own is not."""
    if not name.startswith(_USER):
        return mode
    return mode & 0o755 | 0o700 if parents == ("refs",) else 0o700


def _is_user_s_own(folder: CacheFolder, name: str) -> bool:
    """Whether a user's folder is theirs, and nobody else can put anything into it."""
    state = folder.state()
    return name == user_folder_name(state.st_uid) and not stat.S_IMODE(state.st_mode) & 0o022
