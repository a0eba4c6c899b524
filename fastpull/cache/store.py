"""The store: verified blobs by digest, and what stands beside them.

::

    <root>/v1/
      blobs/<algorithm>/<hex>          the bytes, read-only
      blobs/<algorithm>/<hex>.seal     what was verified, and when
      partial/<algorithm>/<hex>/       data and journal of a blob that is coming, or was
      index/<algorithm>/<hex>          a layer's index, by the digest of its blob
      images/<algorithm>/<name>.sqsh   finished images, see `fastpull.cache.images.store`
      pins/                            what is in use, see `fastpull.cache.images.pins`
      refs/<hash of the reference>     what a reference resolved to
      answers/                         the same, for a job, see `fastpull.cache.job_tag_cache`
      stagings/                        where outputs are made, see `fastpull.cache.maintenance.stagings`
      locks/                           who is at it
      trash/                           on its way out

There is no database and no shared index file: whatever is missing is a miss, never an error. Every method blocks for as
long as the filesystem does; call them off the loop.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from fastpull.cache.blob_metadata import BlobMetadata
from fastpull.cache.directory import NotAFile
from fastpull.cache.errors import cache_errors
from fastpull.cache.files import CacheFiles, digest_of
from fastpull.cache.indexes import Indexes
from fastpull.cache.partial.blob import PartialBlob
from fastpull.cache.partial.journal import JOURNAL
from fastpull.errors import CacheError
from fastpull.oci.digest import Digest

if TYPE_CHECKING:
    from fastpull.cache.locking.file_lock import FileLock

_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS)  # another user's, or a cache that nobody may write to

METADATA_SUFFIX = ".seal"
"""Ends the name of the file that stands beside a blob."""


@dataclass(slots=True)
class CachedBlob:
    """A blob of the cache, open for reading; it stays readable when the cache drops it.

    Attributes:
        digest, size: as the cache knows them.
        seal: what stands beside it; None where that is missing or damaged.
        is_own: this user wrote it, so that nobody else could change it.
    """

    digest: Digest
    size: int
    metadata: BlobMetadata | None
    is_own: bool
    _fd: int

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """Reads from ``offset``; nothing at the end."""
        with cache_errors(str(self.digest)):
            return os.preadv(self._fd, [buffer[: max(0, self.size - offset)]], offset)

    def sync(self) -> None:
        """Waits until the bytes are on their disk."""
        with cache_errors():
            os.fdatasync(self._fd)

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
        root, locks: as for `CacheFiles`.

    Attributes:
        files: where all is.
        indexes: of layers.

    Raises:
        CacheError: from every method, where the filesystem refuses.
    """

    def __init__(self, root: str, locks: str = "auto") -> None:
        self.files = CacheFiles(root, locks)
        self.indexes = Indexes(self.files)

    @property
    def root(self) -> str:
        """The directory, with the format's version."""
        return self.files.root

    # --- blobs

    def find(self, digest: Digest, *, touch: bool = True) -> CachedBlob | None:
        """Opens a blob; None for a miss. Its content still has to be verified.

        Args:
            digest: of the blob.
            touch: note that it was used.
        """
        blob = self.open(digest, touch=touch)
        if blob is not None and blob.metadata is not None and blob.metadata.size != blob.size:
            blob.close()
            self.quarantine(digest)
            return None
        return blob

    def open(self, digest: Digest, *, touch: bool = False) -> CachedBlob | None:
        """Opens a blob as `find` does, also one that does not fit its seal. What is no file is taken out of the way."""
        with cache_errors():
            try:
                fd = self.files.open(self.blob_path(digest))
            except NotAFile:
                self.quarantine(digest)
                return None
            if fd is None:
                return None
            if touch:
                with contextlib.suppress(OSError):  # another user's
                    os.utime(fd)
            state = os.fstat(fd)
            is_own = state.st_uid == os.geteuid()
            return CachedBlob(digest, state.st_size, self._read_metadata(digest), is_own, fd)

    def begin(
        self, digest: Digest, size: int, lock: FileLock, is_stopped: Callable[[], bool] = lambda: False
    ) -> PartialBlob:
        """Starts or resumes the writing of a blob, whose lock the caller holds; the partial takes the lock over.

        Args:
            digest: of the blob.
            size: of the blob, in bytes.
            lock: of the blob.
            is_stopped: asked now and then whether to give up.

        Raises:
            Aborted: it was; the lock is released.
        """
        partial = PartialBlob(self.files, digest, size, lock)
        try:
            partial.resume(is_stopped)
        except BaseException:
            partial.close()
            raise
        return partial

    def has_partial(self, digest: Digest) -> bool:
        """Whether somebody has begun to write a blob, and has left something of it or is at it."""
        state = self.files.lookup(self.files.path("partial", digest))
        return state is not None and stat.S_ISDIR(state.st_mode)

    def publish(self, partial: PartialBlob, fingerprint: str, sync: bool) -> None:
        """Makes a complete blob, whose digest the caller has verified, visible to everybody.

        Args:
            partial: whose bytes are all there; closed afterwards.
            fingerprint: XXH3-64 of the blob, in hexadecimal.
            sync: wait until bytes and names are on the disk.

        Raises:
            LockLost: somebody else has taken over the blob; what this process has written is not used.
        """
        path = self.blob_path(partial.digest)
        with cache_errors():
            if sync:
                partial.sync()
            complete = partial.take(self.files.file_mode)
            self.files.write(path + METADATA_SUFFIX, BlobMetadata.now(partial.size, fingerprint, sync).to_bytes())
            with self.files.at(path, create=True) as (directory, name):
                partial.directory.publish(complete, directory, name)
                partial.directory.unlink(JOURNAL)
                if sync:
                    directory.sync()
        partial.close()

    def refresh_metadata(self, blob: CachedBlob, fingerprint: str, sync: bool = False) -> None:
        """Notes that a blob of an earlier boot, or one without a seal, has been verified.

        Args:
            blob: open still, if it is to be synced.
            fingerprint: XXH3-64 of the blob, in hexadecimal; unused where the seal is fresh.
            sync: wait until its bytes and its seal are on the disk, if the seal does not say that they are.

        Raises:
            CacheError: they may not be on the disk. Without ``sync`` a seal that cannot be written costs no more than
                another look at the blob.
        """
        is_fresh = blob.metadata is not None and blob.metadata.is_fresh
        # what outlived the boot under which it was verified has reached its disk
        on_disk = blob.metadata is not None and (blob.metadata.synced or not is_fresh)
        if is_fresh and (on_disk or not sync):
            return
        if sync and not on_disk:
            blob.sync()
            on_disk = True
        known = blob.metadata.fingerprint if blob.metadata is not None and is_fresh else fingerprint
        try:
            self.files.write(
                self.blob_path(blob.digest) + METADATA_SUFFIX,
                BlobMetadata.now(blob.size, known, on_disk).to_bytes(),
                sync,
            )
        except CacheError as error:
            if sync and error.errno not in _NOT_OURS:
                raise

    def quarantine(self, digest: Digest) -> None:
        """Takes a blob that is not what its name says out of the way, to ``trash``, with its seal and index."""
        self.remove(digest, why="corrupt")

    def remove(self, digest: Digest, why: str = "removed") -> bool:
        """Takes a blob out of the cache; says whether it was there. Whoever has it open can read on."""
        if not self.files.move_to_trash(self.blob_path(digest), why):
            return False
        for path in (self.blob_path(digest) + METADATA_SUFFIX, self.files.path("index", digest)):
            self.files.unlink(path)
        return True

    def blobs(self) -> Iterator[StoredBlob]:
        """Lists the blobs."""
        for algorithm, name, state in self.files.entries("blobs"):
            if (
                stat.S_ISREG(state.st_mode)
                and not name.endswith(METADATA_SUFFIX)
                and (digest := digest_of(algorithm, name))
            ):
                yield StoredBlob(digest, state.st_size, state.st_mtime)

    def has_damaged_metadata(self, blob: CachedBlob, fingerprint: str) -> bool:
        """Whether a seal stands beside a blob that is not that of its bytes; none at all is no damage."""
        if blob.metadata is None:
            return self.files.lookup(self.blob_path(blob.digest) + METADATA_SUFFIX) is not None
        return (blob.metadata.size, blob.metadata.fingerprint) != (blob.size, fingerprint)

    def rewrite_metadata(self, blob: CachedBlob, fingerprint: str) -> None:
        """Writes the seal of a blob that has just been verified anew."""
        self.files.write(
            self.blob_path(blob.digest) + METADATA_SUFFIX,
            BlobMetadata.now(blob.size, fingerprint, synced=False).to_bytes(),
        )

    def is_missing(self, digest: Digest) -> bool:
        """Whether a blob is not there."""
        return self.files.lookup(self.blob_path(digest)) is None

    def blob_path(self, digest: Digest) -> str:
        """Where a blob is, or would be."""
        return self.files.path("blobs", digest)

    def lock(self, digest: Digest) -> FileLock:
        """The lock that whoever writes a blob holds."""
        return self.files.blob_lock(digest)

    def connection_permit(self, number: int) -> FileLock:
        """The lock of one of the places of `fastpull.cache.locking.shared_semaphore.SharedSemaphore`."""
        return self.files.lock(f"slot-{number}")

    def _read_metadata(self, digest: Digest) -> BlobMetadata | None:
        content = self.files.read(self.blob_path(digest) + METADATA_SUFFIX)
        return None if content is None else BlobMetadata.from_bytes(content)

    # --- small documents: manifests, configs

    def read_document(self, digest: Digest, max_size: int, *, touch: bool = True, sync: bool = False) -> bytes | None:
        """The content of a small blob, verified; None for a miss. A corrupt one is quarantined, and a miss.

        Args:
            digest: of the blob.
            max_size: that it may have, in bytes.
            touch: note that it was used.
            sync: wait until it is on the disk.
        """
        blob = self.find(digest, touch=touch)
        if blob is None:
            return None
        with contextlib.closing(blob):
            content = bytearray(min(blob.size, max_size))
            size = blob.readinto(memoryview(content), 0)
            if blob.size > max_size or size != blob.size or Digest.of(bytes(content), digest.algorithm) != digest:
                self.quarantine(digest)
                return None
            if touch:
                self.refresh_metadata(blob, xxhash.xxh3_64_hexdigest(content), sync)
        return bytes(content)

    def write_document(self, digest: Digest, content: bytes, fingerprint: str, sync: bool) -> None:
        """Keeps a small blob that the caller has verified; one that is there already is used, if it is sound."""
        path = self.blob_path(digest)
        if self.read_document(digest, len(content), sync=sync) is None:
            self.files.write(path + METADATA_SUFFIX, BlobMetadata.now(len(content), fingerprint, sync).to_bytes())
            self.files.write(path, content, sync)
