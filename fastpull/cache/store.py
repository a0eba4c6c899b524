"""The store: verified blobs by digest, and the files beside them.

::

    <root>/v1/
      blobs/<algorithm>/<hex>          the bytes, read-only
      blobs/<algorithm>/<hex>.seal     metadata, see `fastpull.cache.blob_metadata`
      partial/<algorithm>/<hex>/       data and journal of a partial blob
      index/<algorithm>/<hex>          index of a layer, by the digest of its blob
      images/<algorithm>/<name>.sqsh   finished images, see `fastpull.cache.images.store`
      pins/                            finished images in use, see `fastpull.cache.images.pins`
      refs/<hash of the reference>     resolved references, see `fastpull.cache.refs`
      answers/                         tags resolved for a job, see `fastpull.cache.job_tag_cache`
      stagings/                        places of stagings, see `fastpull.cache.maintenance.stagings`
      locks/                           see `fastpull.cache.locking.file_lock`
      trash/                           files to be deleted

There is no database and no shared index file: a missing file is a miss, never an error. Every method blocks on the
filesystem; call it off the event loop.
"""

from __future__ import annotations

import contextlib
import errno
import logging
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
from fastpull.cache.indexes import CheckpointTables, Indexes
from fastpull.cache.partial.blob import PartialBlob
from fastpull.cache.partial.journal import JOURNAL
from fastpull.errors import CacheError
from fastpull.oci.digest import Digest

if TYPE_CHECKING:
    from fastpull.cache.locking.file_lock import FileLock

_log = logging.getLogger(__name__)

_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)  # another user owns it, or the cache is read-only

METADATA_SUFFIX = ".seal"
"""Suffix of the metadata file of a blob."""


@dataclass(slots=True)
class CachedBlob:
    """A cached blob, open for reading. It stays readable after its removal from the cache.

    Attributes:
        digest, size: digest, and size of the file.
        metadata: verified facts; None if the metadata file is missing or damaged.
        is_own: whether this user wrote it, so that no other user could change it.
    """

    digest: Digest
    size: int
    metadata: BlobMetadata | None
    is_own: bool
    _fd: int

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """Read bytes at ``offset``; return 0 at the end."""
        with cache_errors(str(self.digest)):
            return os.preadv(self._fd, [buffer[: max(0, self.size - offset)]], offset)

    def sync(self) -> None:
        """Wait until the bytes are on disk."""
        with cache_errors():
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """A blob in a listing.

    Attributes:
        digest: digest of the blob.
        size: size on disk, in bytes.
        last_used: time of the last use, in seconds since the epoch.
    """

    digest: Digest
    size: int
    last_used: float


class Store:
    """A cache directory.

    Args:
        root, locks: see `CacheFiles`.

    Attributes:
        files: files of the cache.
        indexes: layer indexes.
        checkpoints: checkpoints of gzip blobs.

    Raises:
        CacheError: from every method; the filesystem refuses.
    """

    def __init__(self, root: str, locks: str = "auto") -> None:
        self.files = CacheFiles(root, locks)
        self.indexes = Indexes(self.files)
        self.checkpoints = CheckpointTables(self.files)

    @property
    def root(self) -> str:
        """Path of the cache with the version of its format."""
        return self.files.root

    # --- blobs

    def find(self, digest: Digest, *, touch: bool = True) -> CachedBlob | None:
        """Open a blob; return None for a miss. The caller still has to verify the content.

        Args:
            digest: digest of the blob.
            touch: record the use.
        """
        blob = self.open(digest, touch=touch)
        if blob is not None and blob.metadata is not None and blob.metadata.size != blob.size:
            blob.close()
            self.quarantine(digest)
            return None
        return blob

    def open(self, digest: Digest, *, touch: bool = False) -> CachedBlob | None:
        """Open a blob as `find` does, even if it contradicts its metadata. An entry of another type is quarantined."""
        with cache_errors():
            try:
                fd = self.files.open(self.blob_path(digest))
            except NotAFile:
                self.quarantine(digest)
                return None
            if fd is None:
                return None
            if touch:
                with contextlib.suppress(OSError):  # another user owns it
                    os.utime(fd)
            state = os.fstat(fd)
            is_own = state.st_uid == os.geteuid()
            return CachedBlob(digest, state.st_size, self._read_metadata(digest), is_own, fd)

    def begin(
        self, digest: Digest, size: int, lock: FileLock, is_stopped: Callable[[], bool] = lambda: False
    ) -> PartialBlob:
        """Start or resume the writing of a blob. The caller holds its lock, which the partial blob takes over.

        Args:
            digest: digest of the blob.
            size: size of the blob, in bytes.
            lock: lock of the blob.
            is_stopped: polled now and then; a true result aborts.

        Raises:
            Aborted: ``is_stopped`` returned true; the lock is released.
        """
        partial = PartialBlob(self.files, digest, size, lock)
        try:
            partial.resume(is_stopped)
        except BaseException:
            partial.close()
            raise
        return partial

    def has_partial(self, digest: Digest) -> bool:
        """Return whether a blob is being written, or was written in part."""
        state = self.files.lookup(self.files.path("partial", digest))
        return state is not None and stat.S_ISDIR(state.st_mode)

    def publish(self, partial: PartialBlob, fingerprint: str, sync: bool) -> None:
        """Make a complete blob visible. The caller has verified its digest.

        Args:
            partial: complete partial blob; closed afterwards.
            fingerprint: XXH3-64 of the blob, in hexadecimal.
            sync: wait until bytes and names are on disk.

        Raises:
            LockLost: another process has taken over the blob; the bytes of this process are not used.
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
        _log.debug("published blob %s, %d bytes", partial.digest, partial.size)

    def refresh_metadata(self, blob: CachedBlob, fingerprint: str, sync: bool = False) -> None:
        """Record the verification of a blob whose metadata is missing or from an earlier boot.

        Args:
            blob: verified blob; still open if ``sync`` is true.
            fingerprint: XXH3-64 of the blob, in hexadecimal; unused if the metadata is fresh.
            sync: wait until bytes and metadata are on disk, unless the metadata says so already.

        Raises:
            CacheError: with ``sync``, if they may not be on disk. Without it, a failed write only costs another
                verification.
        """
        is_fresh = blob.metadata is not None and blob.metadata.is_fresh
        # data that survived a boot is on disk
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
            if sync and error.errno not in _NOT_WRITABLE:
                raise

    def quarantine(self, digest: Digest) -> None:
        """Move a corrupt blob to ``trash``, and remove its metadata, index and checkpoints."""
        self.remove(digest, why="corrupt")

    def remove(self, digest: Digest, why: str = "removed") -> bool:
        """Move a blob to ``trash``, and return whether it existed. Open descriptors of it stay valid."""
        if not self.files.move_to_trash(self.blob_path(digest), why):
            return False
        self.files.unlink(self.blob_path(digest) + METADATA_SUFFIX)
        self.indexes.remove(digest)
        self.checkpoints.remove(digest)
        _log.debug("removed blob %s: %s", digest, why)
        return True

    def blobs(self) -> Iterator[StoredBlob]:
        """Iterate over the blobs."""
        for algorithm, name, state in self.files.entries("blobs"):
            if (
                stat.S_ISREG(state.st_mode)
                and not name.endswith(METADATA_SUFFIX)
                and (digest := digest_of(algorithm, name))
            ):
                yield StoredBlob(digest, state.st_size, state.st_mtime)

    def has_damaged_metadata(self, blob: CachedBlob, fingerprint: str) -> bool:
        """Return whether a blob contradicts its metadata; missing metadata is no damage."""
        if blob.metadata is None:
            return self.files.lookup(self.blob_path(blob.digest) + METADATA_SUFFIX) is not None
        return (blob.metadata.size, blob.metadata.fingerprint) != (blob.size, fingerprint)

    def rewrite_metadata(self, blob: CachedBlob, fingerprint: str) -> None:
        """Write new metadata for a blob that has just been verified."""
        self.files.write(
            self.blob_path(blob.digest) + METADATA_SUFFIX,
            BlobMetadata.now(blob.size, fingerprint, synced=False).to_bytes(),
        )

    def is_missing(self, digest: Digest) -> bool:
        """Return whether a blob is missing."""
        return self.files.lookup(self.blob_path(digest)) is None

    def blob_path(self, digest: Digest) -> str:
        """Return the path of a blob, present or not."""
        return self.files.path("blobs", digest)

    def lock(self, digest: Digest) -> FileLock:
        """Return the lock for writing a blob."""
        return self.files.blob_lock(digest)

    def connection_permit(self, number: int) -> FileLock:
        """Return the lock of a connection permit, by number.

        See `fastpull.cache.locking.shared_semaphore.SharedSemaphore`.
        """
        return self.files.lock(f"slot-{number}")

    def _read_metadata(self, digest: Digest) -> BlobMetadata | None:
        content = self.files.read(self.blob_path(digest) + METADATA_SUFFIX)
        return None if content is None else BlobMetadata.from_bytes(content)

    # --- small documents: manifests, configs

    def read_document(self, digest: Digest, max_size: int, *, touch: bool = True, sync: bool = False) -> bytes | None:
        """Return the content of a small blob, verified; None for a miss. A corrupt one is quarantined.

        Args:
            digest: digest of the blob.
            max_size: largest accepted size, in bytes.
            touch: record the use.
            sync: wait until it is on disk.
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
        """Store a small blob that the caller has verified, unless a sound one is present."""
        path = self.blob_path(digest)
        if self.read_document(digest, len(content), sync=sync) is None:
            self.files.write(path + METADATA_SUFFIX, BlobMetadata.now(len(content), fingerprint, sync).to_bytes())
            self.files.write(path, content, sync)
