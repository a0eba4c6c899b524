"""Looking after a cache: what is in it, what is damaged, what can go."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import xxhash

from fastpull.cache.leftovers import Leftovers
from fastpull.cache.refs import Ref, damaged_refs, read_refs, remove_ref
from fastpull.cache.store import Store, StoredBlob
from fastpull.config import Settings
from fastpull.errors import CacheError, FastpullError, NotFound
from fastpull.oci.digest import Digest
from fastpull.oci.json import MAX_DOCUMENT_SIZE
from fastpull.oci.manifest import Manifest, parse_manifest
from fastpull.oci.reference import Reference

if TYPE_CHECKING:
    from fastpull.oci.descriptor import Descriptor

_READ_SIZE = 1 << 20
_LEFTOVER_SECONDS = 86400.0
"""Partial blobs that nobody has written to for a day will not be resumed any more."""


@dataclass(frozen=True, slots=True)
class CachedImage:
    """An image that the cache knows by name.

    Attributes:
        reference, platform: as it was resolved.
        digest: of its manifest.
        size: of its layers, in bytes.
        present: how much of that is in the cache.
        last_used: seconds since the epoch.
    """

    reference: str
    platform: str
    digest: Digest
    size: int
    present: int
    last_used: float


@dataclass(slots=True)
class Usage:
    """What a cache takes on its disk.

    Attributes:
        blobs, partial: numbers of complete and of unfinished blobs.
        blob_bytes, partial_bytes, index_bytes, trash_bytes: what they take.
    """

    blobs: int = 0
    blob_bytes: int = 0
    partial: int = 0
    partial_bytes: int = 0
    index_bytes: int = 0
    trash_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """All together."""
        return self.blob_bytes + self.partial_bytes + self.index_bytes + self.trash_bytes


@dataclass(slots=True)
class Removed:
    """What was, or would be, removed.

    Attributes:
        blobs: their digests and sizes.
        freed_bytes: with partial blobs and leftovers.
    """

    blobs: list[StoredBlob] = field(default_factory=list)
    freed_bytes: int = 0


@dataclass(slots=True)
class Verified:
    """What a verification found.

    Attributes:
        blobs, size: how many were read, and their bytes.
        corrupt: digests of those that were not what their name says; they were taken out of the cache.
        corrupt_indexes: of layers whose index was damaged; it was removed, and the next pull makes it again.
        corrupt_seals: of sound blobs with a damaged seal, which is written anew.
        corrupt_partials: of unfinished blobs with damaged ranges or records, which will be fetched again.
        corrupt_refs: names of damaged files in ``refs``; they were removed.
    """

    blobs: int = 0
    size: int = 0
    corrupt: list[Digest] = field(default_factory=list)
    corrupt_indexes: list[Digest] = field(default_factory=list)
    corrupt_seals: list[Digest] = field(default_factory=list)
    corrupt_partials: list[Digest] = field(default_factory=list)
    corrupt_refs: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing was damaged."""
        return self.damaged == 0

    @property
    def damaged(self) -> int:
        """How many things were damaged."""
        layers = (self.corrupt, self.corrupt_indexes, self.corrupt_seals, self.corrupt_partials)
        return sum(len(digests) for digests in layers) + len(self.corrupt_refs)


class Cache:
    """A cache, for those who look after it. Every method is safe beside running pulls, and blocks.

    Args:
        root: of the cache; by default that of the settings.

    Raises:
        CacheError: from the constructor, if there is no cache; from every method, where the filesystem refuses.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = os.fspath(root) if root is not None else Settings.load().cache
        if not os.path.isdir(os.path.join(self.root, "v1")):
            raise CacheError(self.root, "there is no cache; the first pull makes one", errno.ENOENT)
        self._store = Store(self.root)
        self._leftovers = Leftovers(self._store)

    def images(self) -> list[CachedImage]:
        """The images that the cache knows by name, the last used first."""
        blobs = {blob.digest: blob for blob in self._store.blobs()}
        found = []
        for ref in read_refs(self._store.files):
            manifest = self._manifest(ref.manifest)
            if manifest is not None:
                layers = [(layer, blobs.get(layer.digest)) for layer in manifest.layers]
                used = max([ref.time, *(blob.last_used for _, blob in layers if blob)])
                present = sum(blob.size for _, blob in layers if blob)
                size = sum(layer.size for layer, _ in layers)
                found.append(CachedImage(ref.reference, ref.platform, ref.manifest, size, present, used))
        return sorted(found, key=lambda image: -image.last_used)

    def blobs(self) -> list[StoredBlob]:
        """The blobs: layers, configs and manifests, the last used first."""
        return sorted(self._store.blobs(), key=lambda blob: -blob.last_used)

    def usage(self) -> Usage:
        """What the cache takes on its disk."""
        usage = Usage(index_bytes=self._leftovers.size_of("index"), trash_bytes=self._leftovers.size_of("trash"))
        for blob in self._store.blobs():
            usage.blobs += 1
            usage.blob_bytes += blob.size
        for partial in self._leftovers.partials():
            usage.partial += 1
            usage.partial_bytes += partial.size
        return usage

    def collect(
        self, *, max_size: int | None = None, max_age_seconds: float | None = None, dry_run: bool = False
    ) -> Removed:
        """Removes leftovers, and blobs by age and by size, those first that were not used for the longest time.

        A pull that reads a removed blob reads on; one that comes later fetches it again. Unfinished blobs that somebody
        is writing stay.

        Args:
            max_size: of all blobs together, in bytes, afterwards.
            max_age_seconds: since a blob was used last.
            dry_run: only say what would go.
        """
        removed, now = Removed(), time.time()
        patience = _LEFTOVER_SECONDS if max_age_seconds is None else min(_LEFTOVER_SECONDS, max_age_seconds)
        blobs = sorted(self._store.blobs(), key=lambda blob: blob.last_used)
        excess = sum(blob.size for blob in blobs) - max_size if max_size is not None else 0
        for blob in blobs:
            too_old = max_age_seconds is not None and now - blob.last_used > max_age_seconds
            if too_old or excess > 0:
                excess -= blob.size
                self._remove(blob, removed, dry_run)
        for partial in list(self._leftovers.partials()):
            if now - partial.last_used > patience and (dry_run or self._leftovers.remove_partial(partial.digest)):
                removed.freed_bytes += partial.size
        if not dry_run:
            self._leftovers.remove(_LEFTOVER_SECONDS)
            self._leftovers.empty_trash()
            self._forget_refs(lambda ref: self._manifest(ref.manifest) is None)
        return removed

    def verify(self, *, dry_run: bool = False, on_blob: Callable[[StoredBlob, bool], None] | None = None) -> Verified:
        """Reads and hashes everything; what is not what its name says is taken out of the cache.

        Args:
            dry_run: only say what is damaged.
            on_blob: told of each blob, and whether it is sound.
        """
        found, buffer = Verified(), bytearray(_READ_SIZE)
        for blob in self._store.blobs():
            sound = self._is_sound(blob, memoryview(buffer), found, dry_run)
            if sound is None:
                continue  # gone meanwhile
            found.blobs += 1
            found.size += blob.size
            if not sound:
                found.corrupt.append(blob.digest)
                if not dry_run:
                    self._store.quarantine(blob.digest)
            if on_blob is not None:
                on_blob(blob, sound)
        self._verify_others(found, dry_run)
        return found

    def _verify_others(self, found: Verified, dry_run: bool) -> None:
        for digest in list(self._store.indexes):
            if self._store.indexes.is_damaged(digest):
                found.corrupt_indexes.append(digest)
                if not dry_run:
                    self._store.indexes.remove(digest)
        for partial in list(self._leftovers.partials()):
            if self._leftovers.has_damaged_partial(partial.digest, mend=not dry_run):
                found.corrupt_partials.append(partial.digest)
        for name in list(damaged_refs(self._store.files)):
            found.corrupt_refs.append(name)
            if not dry_run:
                remove_ref(self._store.files, name)

    def remove(self, name: str, *, dry_run: bool = False) -> Removed:
        """Removes an image by reference, with those of its blobs that no other reference needs, or a blob by digest.

        Raises:
            InvalidReference, InvalidDigest: ``name`` is neither.
            NotFound: the cache has no such thing.
        """
        removed, mine = Removed(), list[Ref]()
        by_digest = {blob.digest: blob for blob in self._store.blobs()}
        if name.startswith(("sha256:", "sha512:")):
            wanted: Iterable[Digest] = [Digest.parse(name)]
        else:
            reference = str(Reference.parse(name.removeprefix("docker://")))
            mine = [ref for ref in read_refs(self._store.files) if ref.reference == reference]
            others = [ref for ref in read_refs(self._store.files) if ref.reference != reference]
            needed = {digest for ref in others for digest in self._digests(ref)}
            wanted = {digest: None for ref in mine for digest in self._digests(ref) if digest not in needed}
            if mine and not dry_run:
                self._forget_refs(lambda ref: ref.reference == reference)
        for digest in wanted:
            if digest in by_digest:
                self._remove(by_digest[digest], removed, dry_run)
        if not removed.blobs and not mine:
            raise NotFound(repr(name), f"cache {self.root}", "fastpull cache ls shows what it has")
        if not dry_run:
            self._leftovers.empty_trash()
        return removed

    def _remove(self, blob: StoredBlob, removed: Removed, dry_run: bool) -> None:
        if dry_run or self._store.remove(blob.digest):
            removed.blobs.append(blob)
            removed.freed_bytes += blob.size

    def _is_sound(self, blob: StoredBlob, buffer: memoryview, found: Verified, dry_run: bool) -> bool | None:
        """Whether a blob is sound, None if it is gone; a damaged seal beside a sound one is noted, and mended."""
        opened = self._store.open(blob.digest)
        if opened is None:
            return None
        hasher, fingerprint, at = blob.digest.hasher(), xxhash.xxh3_64(), 0
        try:
            while size := opened.readinto(buffer, at):
                hasher.update(buffer[:size])
                fingerprint.update(buffer[:size])
                at += size
        finally:
            opened.close()
        if Digest.sealed(hasher) != blob.digest:
            return False
        if self._store.has_damaged_seal(opened, fingerprint.hexdigest()):
            found.corrupt_seals.append(blob.digest)
            if not dry_run:
                self._store.reseal(opened, fingerprint.hexdigest())
        return True

    def _digests(self, ref: Ref) -> list[Digest]:
        """What an image consists of: its manifest, and as far as that is there, config and layers."""
        manifest = self._manifest(ref.manifest)
        described: tuple[Descriptor, ...] = (manifest.config, *manifest.layers) if manifest else ()
        return [ref.manifest, *(descriptor.digest for descriptor in described)]

    def _manifest(self, digest: Digest) -> Manifest | None:
        body = self._store.read_document(digest, MAX_DOCUMENT_SIZE, touch=False)
        try:
            manifest = parse_manifest(body, None, str(digest)) if body is not None else None
        except FastpullError:
            return None
        return manifest if isinstance(manifest, Manifest) else None

    def _forget_refs(self, which: Callable[[Ref], bool]) -> None:
        for ref in list(read_refs(self._store.files)):
            if which(ref):
                ref.forget(self._store.files)
