"""Leftovers of pulls: partial blobs, drafts, locks of dead processes, and files without their blob."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastpull.cache.errors import cache_errors
from fastpull.cache.files import digest_of
from fastpull.cache.locking.file_lock import has_dead_owner
from fastpull.cache.partial.blob import is_damaged
from fastpull.cache.partial.journal import DATA
from fastpull.cache.store import METADATA_SUFFIX, StoredBlob
from fastpull.errors import CacheError

if TYPE_CHECKING:
    from fastpull.cache.directory import CacheDirectory
    from fastpull.cache.store import Store
    from fastpull.oci.digest import Digest


class Orphans:
    """The leftovers in a store. Files in use are left alone.

    Args:
        store: store to clean up.

    Raises:
        CacheError: from every method; the filesystem refuses.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files = store.files

    def partials(self) -> Iterator[StoredBlob]:
        """Iterate over the partial blobs, with their size on disk."""
        for algorithm, name, state in self._files.entries("partial"):
            digest = digest_of(algorithm, name)
            if digest and stat.S_ISDIR(state.st_mode):
                try:
                    data = self._files.lookup(os.path.join(self._files.path("partial", digest), DATA))
                except CacheError:
                    continue  # not readable for this user
                if data is not None:
                    yield StoredBlob(digest, data.st_blocks * 512, data.st_mtime)

    def has_damaged_partial(self, digest: Digest, *, mend: bool) -> bool:
        """Return whether a partial blob differs from its journal; False while it is being written.

        Args:
            digest: digest of the blob.
            mend: drop damaged records from the journal, so that their ranges are fetched again.
        """
        lock = self._store.lock(digest)
        if not lock.try_acquire():
            return False
        try:
            with cache_errors():
                try:
                    with self._files.directory("partial", digest.algorithm, digest.encoded) as directory:
                        return is_damaged(directory, mend=mend)
                except FileNotFoundError:
                    return False
        finally:
            lock.release()

    def remove_partial(self, digest: Digest) -> bool:
        """Remove a partial blob, and return False while it is being written."""
        lock = self._store.lock(digest)
        if not lock.try_acquire():
            return False
        try:
            with contextlib.suppress(CacheError):  # another user owns it
                self._files.remove(self._files.path("partial", digest))
        finally:
            lock.release()
        return True

    def remove(self, older_than_seconds: float) -> None:
        """Remove obsolete drafts, locks, indexes and checkpoints, and journals and metadata without their data."""
        latest = time.time() - older_than_seconds
        self._remove_drafts(latest)
        self._remove_metadata(latest)
        self._remove_journals(latest)
        self._remove_locks()
        for tables in (self._store.indexes, self._store.checkpoints):
            for digest in list(tables):
                if self._store.is_missing(digest):
                    tables.remove(digest)

    def _remove_drafts(self, latest: float) -> None:
        """Remove drafts, and foreign entries where only files belong. No lock is needed for either."""
        for names in (
            ("refs",),
            ("pins",),
            ("answers",),
            ("checkpoints",),
            ("locks",),
            ("index",),
            ("blobs",),
            ("images",),
        ):
            for nested in (False, True):
                self._remove_strays(names, latest, nested=nested)
        for inner, name, _ in self._files.entries("partial"):
            self._remove_strays(("partial", inner, name), latest, nested=False)

    def _remove_strays(self, names: tuple[str, ...], latest: float, *, nested: bool) -> None:
        for inner in [name for name in self._files.names(*names) if name[0] != "."] if nested else [""]:
            parts = (*names, inner) if inner else names
            # another user owns it, or it is not a directory
            with contextlib.suppress(CacheError, OSError), self._files.directory(*parts) as directory:
                for name in directory.names():
                    self._remove_stray(directory, name, latest, may_have_directories=len(parts) == 1)

    def _remove_stray(self, directory: CacheDirectory, name: str, latest: float, *, may_have_directories: bool) -> None:
        state = directory.lookup(name)
        if state is None or state.st_mtime >= latest or (name[0] != "." and stat.S_ISREG(state.st_mode)):
            return
        if name[0] == "." or not (may_have_directories and stat.S_ISDIR(state.st_mode)):
            with contextlib.suppress(OSError):
                directory.remove(name)

    def _remove_locks(self) -> None:
        for name in self._files.names("locks"):
            lock = self._files.lock(name)
            if name.startswith("."):
                with cache_errors(), self._files.directory("locks") as directory:
                    if has_dead_owner(directory, name):
                        directory.unlink(name)
                continue
            with contextlib.suppress(CacheError):  # not a lock
                if lock.try_acquire():
                    lock.release()

    def _remove_metadata(self, latest: float) -> None:
        """Remove metadata without a blob, left by processes killed just before publication."""
        for algorithm, name, state in self._files.entries("blobs"):
            digest = digest_of(algorithm, name.removesuffix(METADATA_SUFFIX))
            if name.endswith(METADATA_SUFFIX) and digest and state.st_mtime < latest and self._store.is_missing(digest):
                self._files.unlink(self._store.blob_path(digest) + METADATA_SUFFIX)

    def _remove_journals(self, latest: float) -> None:
        """Remove journals without data, left by processes killed just after publication."""
        for algorithm, name, state in self._files.entries("partial"):
            digest = digest_of(algorithm, name)
            with contextlib.suppress(CacheError):  # another user owns it, or it is not a directory
                if digest and state.st_mtime < latest and not self._has_data(digest):
                    self.remove_partial(digest)

    def _has_data(self, digest: Digest) -> bool:
        return self._files.lookup(os.path.join(self._files.path("partial", digest), DATA)) is not None

    def size_of(self, directory: str) -> int:
        """Return the size of the files in ``index``, ``checkpoints`` or ``trash``, in bytes."""
        nested = directory == "index" or (directory == "checkpoints" and self._files.is_shared)
        return sum(state.st_size for _, _, state in self._files.entries(directory, nested=nested))

    def empty_trash(self) -> int:
        """Delete the content of ``trash``, and return the freed bytes."""
        freed = 0
        for _, name, state in self._files.entries("trash", nested=False):
            with contextlib.suppress(CacheError):  # another user owns it
                self._files.remove(os.path.join(self._files.root, "trash", name))
                freed += state.st_size if stat.S_ISREG(state.st_mode) else 0
        return freed
