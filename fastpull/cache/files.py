"""The files of a cache: where they are, what permissions they have, how a small one is written and a folder listed."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

from fastpull.cache.locks import FileLock
from fastpull.errors import CacheError, FastpullError, InvalidDigest, from_os_error
from fastpull.oci.digest import ALGORITHMS, Digest

_BY_DIGEST = ("blobs", "partial", "index", "images")
_FOLDERS = (*_BY_DIGEST, "answers", "pins", "refs", "locks", "trash")
_counter = itertools.count()


class Files:
    """The directory ``<root>/v1`` and its folders.

    Args:
        root: made if it is missing, for its owner alone. Folders and files in it take over the root's permissions
            for group and others, so that a site can share a cache by the root's mode.
        locks: the way of its locks, see `FileLock`.

    Attributes:
        root: with ``v1``.
        mode: of folders.
        file_mode: of what is published: for all who may read the cache, and not to be written to.
        note_mode: of what whoever shares the cache may touch to say that they used it.

    Raises:
        CacheError: from every method, where the filesystem refuses.
    """

    def __init__(self, root: str, locks: str = "auto") -> None:
        self._locks = locks
        self.root = os.path.join(os.path.abspath(root), "v1")
        with local_errors():
            os.makedirs(os.path.dirname(self.root), mode=0o700, exist_ok=True)
            self.mode = os.stat(os.path.dirname(self.root)).st_mode & 0o2777
            inner = (f"{folder}/{algorithm}" for folder in _BY_DIGEST for algorithm in ALGORITHMS)
            for folder in ("", *_FOLDERS, *inner):
                path = os.path.join(self.root, folder)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path)
                    os.chmod(path, self.mode)
        self.file_mode = self.mode & 0o444
        self.note_mode = self.mode & 0o666

    @property
    def is_shared(self) -> bool:
        """Whether others than its owner may write to the cache."""
        return bool(self.mode & 0o022)

    def path(self, folder: str, digest: Digest) -> str:
        """Where something that is named by a digest is, or would be."""
        return os.path.join(self.root, folder, digest.algorithm, digest.encoded)

    def blob_lock(self, digest: Digest) -> FileLock:
        """The lock that whoever writes a blob holds."""
        return self.lock(f"{digest.algorithm}-{digest.encoded}")

    def lock(self, name: str) -> FileLock:
        """The lock of that name."""
        return FileLock(os.path.join(self.root, "locks", name), self.note_mode, self._locks)

    def listed(self, folder: str, *, nested: bool = True) -> Iterator[tuple[str, str, os.stat_result]]:
        """The visible files of a folder as (subfolder, name, state); those that vanish meanwhile are passed over."""
        root = os.path.join(self.root, folder)
        with local_errors():
            for inner in names_in(root) if nested else [""]:
                for name in names_in(os.path.join(root, inner)):
                    if not name.startswith("."):
                        with contextlib.suppress(FileNotFoundError):
                            yield inner, name, os.stat(os.path.join(root, inner, name), follow_symlinks=False)

    def read(self, path: str) -> bytes | None:
        """The content of a small file; None where there is none."""
        with local_errors():
            try:
                with open(path, "rb") as file:
                    return file.read()
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
        folder, name = os.path.split(path)
        draft = os.path.join(folder, f".{name[:64]}.{unique()}")
        with local_errors():
            os.makedirs(folder, exist_ok=True)
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                try:
                    view = memoryview(content)
                    while view:
                        view = view[os.write(fd, view) :]
                    os.fchmod(fd, self.file_mode if mode is None else mode)
                    if sync:
                        os.fsync(fd)
                finally:
                    os.close(fd)
                os.rename(draft, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(draft)
                raise
            if sync:
                sync_folder(folder)

    def discard(self, path: str, why: str) -> bool:
        """Moves a file to ``trash``; says whether it was there. Whoever has it open can read on."""
        target = os.path.join(self.root, "trash", f"{os.path.basename(path)}.{unique()}.{why}")
        with local_errors():
            try:
                os.rename(path, target)
            except FileNotFoundError:
                return False
        return True

    def open_scratch(self) -> int:
        """Opens an empty file without a name, which is gone when its descriptor is closed, whoever dies meanwhile."""
        with local_errors():
            with contextlib.suppress(OSError):  # not every filesystem can: NFS, some overlays
                return os.open(self.root, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            path = os.path.join(self.root, f".scratch.{unique()}")
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            os.unlink(path)
            return fd

    def unlink(self, path: str) -> None:
        """Removes a file, if it is there."""
        with local_errors(), contextlib.suppress(FileNotFoundError):
            os.unlink(path)


@contextlib.contextmanager
def local_errors() -> Iterator[None]:
    """Makes ours of what the system says about a cache."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FastpullError):
            raise
        raise from_os_error(CacheError, error) from error


def digest_of(algorithm: str, name: str) -> Digest | None:
    """The digest that a file is named by; None for any other name."""
    try:
        return Digest(algorithm, name)
    except InvalidDigest:
        return None


def names_in(path: str) -> list[str]:
    """What is in a directory, sorted; nothing where there is none."""
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []


def unique() -> str:
    """A part of a name that nothing else on this host has at this time."""
    return f"{os.getpid()}.{next(_counter)}"


def sync_folder(path: str) -> None:
    """Waits until the names in a directory are on the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
