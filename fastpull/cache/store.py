"""The store: verified blobs by digest, and what stands beside them.

::

    <root>/v1/
      blobs/<algorithm>/<hex>          the bytes, read-only
      blobs/<algorithm>/<hex>.seal     what was verified, and when
      partial/<algorithm>/<hex>/       data and journal of a blob that is coming, or was
      index/<algorithm>/<hex>          a layer's index, by the digest of its blob
      refs/<hash of the reference>     what a reference resolved to
      locks/                           flock files
      trash/                           on its way out

There is no database and no shared index file: whatever is missing is a miss, never an error. Every method blocks for as
long as the filesystem does; call them off the loop.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import xxhash

from fastpull.cache.locks import FileLock
from fastpull.cache.partial import Partial, is_damaged
from fastpull.cache.seal import Seal
from fastpull.errors import CacheError, FastpullError, InvalidDigest, from_os_error
from fastpull.oci.digest import ALGORITHMS, Digest

_SEAL = ".seal"
_FINGERPRINT_SIZE = 8
_BY_DIGEST = ("blobs", "partial", "index")
_FOLDERS = ("blobs", "partial", "index", "refs", "locks", "trash")
_counter = itertools.count()


@dataclass(slots=True)
class CachedBlob:
    """A blob of the cache, open for reading; it stays readable when the cache drops it.

    Attributes:
        digest, size: as the cache knows them.
        seal: what stands beside it; None where that is missing or damaged.
    """

    digest: Digest
    size: int
    seal: Seal | None
    _fd: int

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """Reads from ``offset``; nothing at the end."""
        try:
            return os.preadv(self._fd, [buffer], offset)
        except OSError as error:
            raise from_os_error(CacheError, error, str(self.digest)) from error

    def close(self) -> None:
        """Closes the file. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """What a listing knows of a blob.

    Attributes:
        digest: its name.
        size: on the disk, in bytes.
        last_used: seconds since the epoch.
    """

    digest: Digest
    size: int
    last_used: float


class Store:
    """A cache directory.

    Args:
        root: made if it is missing, for its owner alone. Folders and files in it take over the root's permissions
            for group and others, so that a site can share a cache by the root's mode.

    Raises:
        CacheError: from every method, where the filesystem refuses.
    """

    def __init__(self, root: str) -> None:
        self.root = os.path.join(os.path.abspath(root), "v1")
        with self._local_errors():
            os.makedirs(os.path.dirname(self.root), mode=0o700, exist_ok=True)
            mode = os.stat(os.path.dirname(self.root)).st_mode & 0o2777
            inner = (f"{folder}/{algorithm}" for folder in _BY_DIGEST for algorithm in ALGORITHMS)
            for folder in ("", *_FOLDERS, *inner):
                path = os.path.join(self.root, folder)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path)
                    os.chmod(path, mode)
        self._mode = mode
        self._file_mode = mode & 0o444

    # --- blobs

    def find(self, digest: Digest, *, touch: bool = True) -> CachedBlob | None:
        """Opens a blob; None for a miss. Its content still has to be verified.

        Args:
            digest: of the blob.
            touch: note that it was used.
        """
        blob = self.open(digest, touch=touch)
        if blob is not None and blob.seal is not None and blob.seal.size != blob.size:
            blob.close()
            self.quarantine(digest)
            return None
        return blob

    def open(self, digest: Digest, *, touch: bool = False) -> CachedBlob | None:
        """Opens a blob as `find` does, also one that does not fit its seal."""
        with self._local_errors():
            try:
                fd = os.open(self.blob_path(digest), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return None
            if touch:
                with contextlib.suppress(OSError):  # another user's
                    os.utime(fd)
            return CachedBlob(digest, os.fstat(fd).st_size, self._read_seal(digest), fd)

    def begin(
        self, digest: Digest, size: int, lock: FileLock, is_stopped: Callable[[], bool] = lambda: False
    ) -> Partial:
        """Starts or resumes the writing of a blob, whose lock the caller holds; the partial takes the lock over.

        Args:
            digest: of the blob.
            size: of the blob, in bytes.
            lock: of the blob.
            is_stopped: asked now and then whether to give up.

        Raises:
            Aborted: it was; the lock is released.
        """
        partial = Partial(self._partial_path(digest), digest, size, lock, self._mode)
        try:
            partial.resume(is_stopped)
        except BaseException:
            partial.close()
            raise
        return partial

    def publish(self, partial: Partial, fingerprint: str, sync: bool) -> None:
        """Makes a complete blob, whose digest the caller has verified, visible to everybody.

        Args:
            partial: whose bytes are all there; closed afterwards.
            fingerprint: XXH3-64 of the blob, in hexadecimal.
            sync: wait until bytes and names are on the disk.
        """
        path = self.blob_path(partial.digest)
        with self._local_errors():
            if sync:
                partial.sync()
            with contextlib.suppress(PermissionError):  # another user began it
                os.chmod(partial.data_path, self._file_mode)
            self._write(path + _SEAL, Seal.now(partial.size, fingerprint, sync).to_bytes())
            os.rename(partial.data_path, path)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial.journal_path)
            if sync:
                _sync_directory(os.path.dirname(path))
        partial.close()

    def renew(self, blob: CachedBlob, fingerprint: str) -> None:
        """Notes that a blob of an earlier boot, or one without a seal, has been verified."""
        if blob.seal is None or not blob.seal.is_fresh:
            with contextlib.suppress(CacheError):  # another user's
                # what outlived the boot under which it was verified has reached its disk
                outlived = blob.seal is not None
                self._write(self.blob_path(blob.digest) + _SEAL, Seal.now(blob.size, fingerprint, outlived).to_bytes())

    def quarantine(self, digest: Digest) -> None:
        """Takes a blob that is not what its name says out of the way, to ``trash``, with its seal and index."""
        self.remove(digest, why="corrupt")

    def remove(self, digest: Digest, why: str = "removed") -> bool:
        """Takes a blob out of the cache; says whether it was there. Whoever has it open can read on."""
        target = os.path.join(self.root, "trash", f"{digest.encoded}.{os.getpid()}.{next(_counter)}.{why}")
        with self._local_errors():
            try:
                os.rename(self.blob_path(digest), target)
            except FileNotFoundError:
                return False
            for path in (self.blob_path(digest) + _SEAL, self._index_path(digest)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        return True

    def blobs(self) -> Iterator[StoredBlob]:
        """Lists the blobs."""
        for algorithm, name, state in self._files("blobs"):
            if not name.endswith(_SEAL) and (digest := _digest(algorithm, name)):
                yield StoredBlob(digest, state.st_size, state.st_mtime)

    def has_damaged_seal(self, blob: CachedBlob, fingerprint: str) -> bool:
        """Whether a seal stands beside a blob that is not that of its bytes; none at all is no damage."""
        if blob.seal is None:
            return os.path.lexists(self.blob_path(blob.digest) + _SEAL)
        return (blob.seal.size, blob.seal.fingerprint) != (blob.size, fingerprint)

    def reseal(self, blob: CachedBlob, fingerprint: str) -> None:
        """Writes the seal of a blob that has just been verified anew."""
        self._write(self.blob_path(blob.digest) + _SEAL, Seal.now(blob.size, fingerprint, synced=False).to_bytes())

    def is_missing(self, digest: Digest) -> bool:
        """Whether a blob is not there."""
        return not os.path.lexists(self.blob_path(digest))

    def blob_path(self, digest: Digest) -> str:
        """Where a blob is, or would be."""
        return os.path.join(self.root, "blobs", digest.algorithm, digest.encoded)

    def lock(self, digest: Digest) -> FileLock:
        """The lock that whoever writes a blob holds."""
        return self._lock(f"{digest.algorithm}-{digest.encoded}")

    def slot(self, number: int) -> FileLock:
        """The lock of one of the places of `fastpull.cache.slots.Slots`."""
        return self._lock(f"slot-{number}")

    def _lock(self, name: str) -> FileLock:
        return FileLock(os.path.join(self.root, "locks", name), self._mode & 0o666)

    def _read_seal(self, digest: Digest) -> Seal | None:
        try:
            with open(self.blob_path(digest) + _SEAL, "rb") as file:
                return Seal.from_bytes(file.read(4096))
        except FileNotFoundError:
            return None

    # --- small documents: manifests, configs, indexes

    def read_document(self, digest: Digest, max_size: int, *, touch: bool = True) -> bytes | None:
        """The content of a small blob, verified; None for a miss. A corrupt one is quarantined, and a miss."""
        blob = self.find(digest, touch=touch)
        if blob is None:
            return None
        try:
            content = bytearray(min(blob.size, max_size))
            size = blob.readinto(memoryview(content), 0)
        finally:
            blob.close()
        if blob.size > max_size or size != blob.size or Digest.of(bytes(content), digest.algorithm) != digest:
            self.quarantine(digest)
            return None
        if touch:
            self.renew(blob, xxhash.xxh3_64_hexdigest(content))
        return bytes(content)

    def write_document(self, digest: Digest, content: bytes, fingerprint: str, sync: bool) -> None:
        """Keeps a small blob that the caller has verified; one that is there already is used, if it is sound."""
        path = self.blob_path(digest)
        if self.read_document(digest, len(content)) is None:
            self._write(path + _SEAL, Seal.now(len(content), fingerprint, sync).to_bytes())
            self._write(path, content, sync)

    def read_index(self, digest: Digest) -> bytes | None:
        """What `write_index` kept for a layer; None for a miss. A damaged one is removed, and a miss."""
        content = self._index_content(digest)
        if content is None:
            return None
        if not _is_sound_index(content):
            self.remove_index(digest)
            return None
        return content[:-_FINGERPRINT_SIZE]

    def has_damaged_index(self, digest: Digest) -> bool:
        """Whether an index is not what `write_index` kept."""
        content = self._index_content(digest)
        return content is not None and not _is_sound_index(content)

    def _index_content(self, digest: Digest) -> bytes | None:
        try:
            with self._local_errors(), open(self._index_path(digest), "rb") as file:
                return file.read()
        except CacheError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def write_index(self, digest: Digest, index: bytes) -> None:
        """Keeps the index of a layer whose blob and diff_id were verified, and a fingerprint behind it."""
        self._write(self._index_path(digest), index + xxhash.xxh3_64_digest(index))

    def indexes(self) -> Iterator[Digest]:
        """The blobs of the layers whose index is kept."""
        for algorithm, name, _ in self._files("index"):
            if digest := _digest(algorithm, name):
                yield digest

    def remove_index(self, digest: Digest) -> None:
        """Forgets the index of a layer."""
        with self._local_errors(), contextlib.suppress(FileNotFoundError):
            os.unlink(self._index_path(digest))

    def _index_path(self, digest: Digest) -> str:
        return os.path.join(self.root, "index", digest.algorithm, digest.encoded)

    # --- references

    def refs(self) -> Iterator[str]:
        """The names under which `write_ref` kept something."""
        for _, name, _ in self._files("refs", nested=False):
            yield name

    def read_ref(self, name: str) -> bytes | None:
        """What `write_ref` kept; None if it is gone."""
        with self._local_errors():
            try:
                with open(self._ref_path(name), "rb") as file:
                    return file.read()
            except FileNotFoundError:
                return None

    def write_ref(self, name: str, content: bytes) -> None:
        """Remembers what a reference resolved to."""
        self._write(self._ref_path(name), content)

    def remove_ref(self, name: str) -> None:
        """Forgets a reference."""
        with self._local_errors(), contextlib.suppress(FileNotFoundError):
            os.unlink(self._ref_path(name))

    def _ref_path(self, name: str) -> str:
        return os.path.join(self.root, "refs", name)

    # --- leftovers

    def partials(self) -> Iterator[StoredBlob]:
        """Lists the blobs that are coming, or were; the size is what they take on the disk."""
        for algorithm in _listed(os.path.join(self.root, "partial")):
            for name in _listed(os.path.join(self.root, "partial", algorithm)):
                digest = _digest(algorithm, name)
                data = os.path.join(self.root, "partial", algorithm, name, "data")
                with contextlib.suppress(FileNotFoundError):
                    state = os.stat(data)
                    if digest:
                        yield StoredBlob(digest, state.st_blocks * 512, state.st_mtime)

    def has_damaged_partial(self, digest: Digest, *, mend: bool) -> bool:
        """Whether an unfinished blob is not what its journal says; one that somebody is writing is left alone.

        Args:
            digest: of the blob.
            mend: leave in the journal only what is true, so that the rest is fetched again.
        """
        lock = self.lock(digest)
        if not lock.try_acquire():
            return False
        try:
            with self._local_errors():
                return is_damaged(self._partial_path(digest), mend=mend)
        finally:
            lock.release()

    def remove_partial(self, digest: Digest) -> bool:
        """Removes what is left of an unfinished blob, unless somebody is writing it."""
        lock = self.lock(digest)
        if not lock.try_acquire():
            return False
        try:
            with self._local_errors():
                shutil.rmtree(self._partial_path(digest), ignore_errors=True)
        finally:
            lock.release()
        return True

    def _partial_path(self, digest: Digest) -> str:
        return os.path.join(self.root, "partial", digest.algorithm, digest.encoded)

    def remove_leftovers(self, older_than_seconds: float) -> None:
        """Removes drafts, journals and seals without bytes, locks and indexes that nobody will need again."""
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)
                if name.startswith("."):
                    with self._local_errors(), contextlib.suppress(FileNotFoundError):
                        if time.time() - os.stat(path).st_mtime > older_than_seconds:
                            os.unlink(path)
        self._remove_orphans(older_than_seconds)
        for name in _listed(os.path.join(self.root, "locks")):
            lock = self._lock(name)
            if lock.try_acquire():
                lock.release()
        for digest in list(self.indexes()):
            if self.is_missing(digest):
                self.remove_index(digest)

    def _remove_orphans(self, older_than_seconds: float) -> None:
        """What a process leaves that is killed just before or just after a blob gets its name."""
        latest = time.time() - older_than_seconds
        for algorithm, name, state in self._files("blobs"):
            digest = _digest(algorithm, name.removesuffix(_SEAL))
            if name.endswith(_SEAL) and digest and state.st_mtime < latest and self.is_missing(digest):
                with self._local_errors(), contextlib.suppress(FileNotFoundError):
                    os.unlink(self.blob_path(digest) + _SEAL)
        for algorithm, name, state in self._files("partial"):
            digest = _digest(algorithm, name)
            if digest and state.st_mtime < latest and not os.path.exists(f"{self._partial_path(digest)}/data"):
                self.remove_partial(digest)

    def size_of(self, folder: str) -> int:
        """What the files of ``index`` or ``trash`` take, in bytes."""
        return sum(state.st_size for _, _, state in self._files(folder, nested=folder == "index"))

    def empty_trash(self, older_than_seconds: float = 0.0) -> int:
        """Deletes what was removed, and returns how many bytes that was."""
        freed = 0
        for _, name, state in self._files("trash", nested=False):
            if time.time() - state.st_mtime >= older_than_seconds:
                with self._local_errors(), contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.root, "trash", name))
                    freed += state.st_size
        return freed

    # --- files

    def _files(self, folder: str, nested: bool = True) -> Iterator[tuple[str, str, os.stat_result]]:
        """The visible files of a folder as (subfolder, name, state); those that vanish meanwhile are passed over."""
        root = os.path.join(self.root, folder)
        with self._local_errors():
            for inner in _listed(root) if nested else [""]:
                for name in _listed(os.path.join(root, inner)):
                    if not name.startswith("."):
                        with contextlib.suppress(FileNotFoundError):
                            yield inner, name, os.stat(os.path.join(root, inner, name), follow_symlinks=False)

    def _write(self, path: str, content: bytes, sync: bool = False) -> None:
        """Writes a small file that appears whole or not at all."""
        folder, name = os.path.split(path)
        draft = os.path.join(folder, f".{name[:64]}.{os.getpid()}.{next(_counter)}")
        with self._local_errors():
            os.makedirs(folder, exist_ok=True)
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                try:
                    view = memoryview(content)
                    while view:
                        view = view[os.write(fd, view) :]
                    os.fchmod(fd, self._file_mode)
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
                _sync_directory(folder)

    @contextlib.contextmanager
    def _local_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if isinstance(error, FastpullError):
                raise
            raise from_os_error(CacheError, error) from error


def _is_sound_index(content: bytes) -> bool:
    return xxhash.xxh3_64_digest(content[:-_FINGERPRINT_SIZE]) == content[-_FINGERPRINT_SIZE:]


def _digest(algorithm: str, name: str) -> Digest | None:
    try:
        return Digest(algorithm, name)
    except InvalidDigest:
        return None


def _listed(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
