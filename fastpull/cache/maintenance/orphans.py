"""What pulls leave behind: unfinished blobs, drafts, locks of the dead, and what has no blob any more."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastpull.cache.files import digest_of, local_errors
from fastpull.cache.locking.file_lock import has_dead_owner
from fastpull.cache.partial.blob import is_damaged
from fastpull.cache.partial.journal import DATA
from fastpull.cache.store import SEAL, StoredBlob
from fastpull.errors import CacheError

if TYPE_CHECKING:
    from fastpull.cache.folder import CacheFolder
    from fastpull.cache.store import Store
    from fastpull.oci.digest import Digest


class Orphans:
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
        for algorithm, name, state in self._files.listed("partial"):
            digest = digest_of(algorithm, name)
            if digest and stat.S_ISDIR(state.st_mode):
                try:
                    data = self._files.lookup(os.path.join(self._files.path("partial", digest), DATA))
                except CacheError:
                    continue  # another user's, who keeps it to themselves
                if data is not None:
                    yield StoredBlob(digest, data.st_blocks * 512, data.st_mtime)

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
                try:
                    with self._files.folder("partial", digest.algorithm, digest.encoded) as folder:
                        return is_damaged(folder, mend=mend)
                except FileNotFoundError:
                    return False
        finally:
            lock.release()

    def remove_partial(self, digest: Digest) -> bool:
        """Removes what is left of an unfinished blob, unless somebody is writing it."""
        lock = self._store.lock(digest)
        if not lock.try_acquire():
            return False
        try:
            with contextlib.suppress(CacheError):  # another user's
                self._files.remove(self._files.path("partial", digest))
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
        """Remove drafts, and what is no file where only files are; nobody waits for either."""
        for names in (("refs",), ("pins",), ("answers",), ("locks",), ("index",), ("blobs",), ("images",)):
            for nested in (False, True):
                self._remove_strays(names, latest, nested=nested)
        for inner, name, _ in self._files.listed("partial"):
            self._remove_strays(("partial", inner, name), latest, nested=False)

    def _remove_strays(self, names: tuple[str, ...], latest: float, *, nested: bool) -> None:
        for inner in [name for name in self._files.names(*names) if name[0] != "."] if nested else [""]:
            places = (*names, inner) if inner else names
            # another user's, or no folder
            with contextlib.suppress(CacheError, OSError), self._files.folder(*places) as folder:
                for name in folder.names():
                    self._remove_stray(folder, name, latest, may_have_folders=len(places) == 1)

    def _remove_stray(self, folder: CacheFolder, name: str, latest: float, *, may_have_folders: bool) -> None:
        state = folder.lookup(name)
        if state is None or state.st_mtime >= latest or (name[0] != "." and stat.S_ISREG(state.st_mode)):
            return
        if name[0] == "." or not (may_have_folders and stat.S_ISDIR(state.st_mode)):
            with contextlib.suppress(OSError):
                folder.remove(name)

    def _remove_locks(self) -> None:
        for name in self._files.names("locks"):
            lock = self._files.lock(name)
            if name.startswith("."):
                with local_errors(), self._files.folder("locks") as folder:
                    if has_dead_owner(folder, name):
                        folder.unlink(name)
                continue
            with contextlib.suppress(CacheError):  # what is no lock
                if lock.try_acquire():
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
            with contextlib.suppress(CacheError):  # another user's, or no folder
                if digest and state.st_mtime < latest and not self._has_data(digest):
                    self.remove_partial(digest)

    def _has_data(self, digest: Digest) -> bool:
        return self._files.lookup(os.path.join(self._files.path("partial", digest), DATA)) is not None

    def size_of(self, folder: str) -> int:
        """What the files of ``index`` or ``trash`` take, in bytes."""
        return sum(state.st_size for _, _, state in self._files.listed(folder, nested=folder == "index"))

    def empty_trash(self) -> int:
        """Deletes what was removed, and returns how many bytes that was."""
        freed = 0
        for _, name, state in self._files.listed("trash", nested=False):
            with contextlib.suppress(CacheError):  # another user's
                self._files.remove(os.path.join(self._files.root, "trash", name))
                freed += state.st_size if stat.S_ISREG(state.st_mode) else 0
        return freed
