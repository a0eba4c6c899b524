"""What pulls leave behind: unfinished blobs, drafts, locks of the dead, and what has no blob any more."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastpull.cache.files import digest_of, local_errors, names_in
from fastpull.cache.locks import has_dead_owner
from fastpull.cache.partial import is_damaged
from fastpull.cache.store import SEAL, StoredBlob

if TYPE_CHECKING:
    from fastpull.cache.store import Store
    from fastpull.oci.digest import Digest


class Leftovers:
    """The leftovers in a store. What somebody is using is left alone.

    Args:
        store: to be looked after.

    Raises:
        CacheError: from every method, where the filesystem refuses.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files = store.files

    def partials(self) -> Iterator[StoredBlob]:
        """Lists the blobs that are coming, or were; the size is what they take on the disk."""
        root = os.path.join(self._files.root, "partial")
        for algorithm in names_in(root):
            for name in names_in(os.path.join(root, algorithm)):
                digest = digest_of(algorithm, name)
                with contextlib.suppress(FileNotFoundError):
                    state = os.stat(os.path.join(root, algorithm, name, "data"))
                    if digest:
                        yield StoredBlob(digest, state.st_blocks * 512, state.st_mtime)

    def has_damaged_partial(self, digest: Digest, *, mend: bool) -> bool:
        """Whether an unfinished blob is not what its journal says; one that somebody is writing is left alone.

        Args:
            digest: of the blob.
            mend: leave in the journal only what is true, so that the rest is fetched again.
        """
        lock = self._store.lock(digest)
        if not lock.try_acquire():
            return False
        try:
            with local_errors():
                return is_damaged(self._files.path("partial", digest), mend=mend)
        finally:
            lock.release()

    def remove_partial(self, digest: Digest) -> bool:
        """Removes what is left of an unfinished blob, unless somebody is writing it."""
        lock = self._store.lock(digest)
        if not lock.try_acquire():
            return False
        try:
            with local_errors():
                shutil.rmtree(self._files.path("partial", digest), ignore_errors=True)
        finally:
            lock.release()
        return True

    def remove(self, older_than_seconds: float) -> None:
        """Removes drafts, journals and seals without bytes, locks and indexes that nobody will need again."""
        latest = time.time() - older_than_seconds
        self._remove_drafts(latest)
        self._remove_seals(latest)
        self._remove_journals(latest)
        self._remove_locks()
        for digest in list(self._store.indexes):
            if self._store.is_missing(digest):
                self._store.indexes.remove(digest)

    def _remove_drafts(self, latest: float) -> None:
        for folder, _, names in os.walk(self._files.root):
            for name in names:
                path = os.path.join(folder, name)
                if name.startswith("."):
                    with local_errors(), contextlib.suppress(FileNotFoundError):
                        if os.stat(path).st_mtime < latest:
                            os.unlink(path)

    def _remove_locks(self) -> None:
        folder = os.path.join(self._files.root, "locks")
        for name in names_in(folder):
            lock = self._files.lock(name)
            if name.startswith("."):
                if has_dead_owner(lock.path):
                    self._files.unlink(lock.path)
            elif lock.try_acquire():
                lock.release()

    def _remove_seals(self, latest: float) -> None:
        """What a process leaves that is killed just before a blob gets its name."""
        for algorithm, name, state in self._files.listed("blobs"):
            digest = digest_of(algorithm, name.removesuffix(SEAL))
            if name.endswith(SEAL) and digest and state.st_mtime < latest and self._store.is_missing(digest):
                self._files.unlink(self._store.blob_path(digest) + SEAL)

    def _remove_journals(self, latest: float) -> None:
        """What a process leaves that is killed just after a blob has got its name."""
        for algorithm, name, state in self._files.listed("partial"):
            digest = digest_of(algorithm, name)
            if digest and state.st_mtime < latest and not os.path.exists(f"{self._files.path('partial', digest)}/data"):
                self.remove_partial(digest)

    def size_of(self, folder: str) -> int:
        """What the files of ``index`` or ``trash`` take, in bytes."""
        return sum(state.st_size for _, _, state in self._files.listed(folder, nested=folder == "index"))

    def empty_trash(self) -> int:
        """Deletes what was removed, and returns how many bytes that was."""
        freed = 0
        for _, name, state in self._files.listed("trash", nested=False):
            with local_errors(), contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._files.root, "trash", name))
                freed += state.st_size
        return freed
