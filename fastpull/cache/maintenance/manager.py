"""Cache maintenance: listing, verification, removal."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import xxhash

from fastpull.cache.files import digest_of
from fastpull.cache.images.pins import MAX_PIN_SECONDS, Pins
from fastpull.cache.images.store import FinishedImage, ImageStore
from fastpull.cache.job_tag_cache import JobTagCache
from fastpull.cache.maintenance.orphans import Orphans
from fastpull.cache.maintenance.reports import CachedImage, ListedImage, Removed, RemovedImage, Usage, Verified
from fastpull.cache.maintenance.stagings import StagingRecords
from fastpull.cache.refs import Ref, damaged_refs, read_refs, remove_ref
from fastpull.cache.store import Store, StoredBlob
from fastpull.config.settings import Settings
from fastpull.errors import CacheError, FastpullError, InvalidDigest, NotFound
from fastpull.oci.digest import ALGORITHMS, Digest
from fastpull.oci.json import MAX_DOCUMENT_SIZE
from fastpull.oci.manifest import Manifest, parse_manifest
from fastpull.oci.reference import Reference

if TYPE_CHECKING:
    from fastpull.oci.descriptor import Descriptor

_READ_SIZE = 1 << 20
_DIGITS = re.compile(r"(?:(?P<algorithm>sha256|sha512):)?(?P<digits>[0-9a-f]{6,128})")
_FULL_LENGTHS = (64, 128)
_ORPHAN_SECONDS = 86400.0
"""Age at which a partial blob counts as abandoned: a day without a write."""


class CacheManager:
    """A cache, for maintenance. Every method is safe while pulls run, and blocks.

    Args:
        root: directory of the cache; that of the settings by default.

    Raises:
        CacheError: from the constructor: there is no cache. From every method: the filesystem refuses.
    """

    def __init__(self, root: str | os.PathLike[str] | None = None) -> None:
        self.root = os.fspath(root) if root is not None else Settings.load().cache
        if not os.path.isdir(os.path.join(self.root, "v1")):
            raise CacheError(self.root, "there is no cache; the first pull makes one", errno.ENOENT)
        self._store = Store(self.root)
        self._orphans = Orphans(self._store)
        self._images = ImageStore(self._store.files)
        self._pins = Pins(self._store.files)

    def images(self) -> list[CachedImage]:
        """Return the images known by reference, the most recently used first."""
        blobs = {blob.digest: blob for blob in self._store.blobs()}
        finished = list(self._images.all())
        found = []
        for ref in read_refs(self._store.files):
            manifest = self._manifest(ref.manifest)
            if manifest is not None:
                layers = [(layer, blobs.get(layer.digest)) for layer in manifest.layers]
                mine = [image for image in finished if image.key.manifest == ref.manifest]
                used = [ref.time, *(blob.last_used for _, blob in layers if blob), *(image.last_used for image in mine)]
                found.append(
                    CachedImage(
                        ref.reference,
                        ref.platform,
                        ref.manifest,
                        size=sum(layer.size for layer, _ in layers),
                        present=sum(blob.size for _, blob in layers if blob),
                        finished=sum(image.size for image in mine),
                        last_used=max(used),
                    )
                )
        return sorted(found, key=lambda image: -image.last_used)

    def blobs(self) -> list[StoredBlob]:
        """Return the blobs (layers, configs, manifests), the most recently used first."""
        return sorted(self._store.blobs(), key=lambda blob: -blob.last_used)

    def finished(self) -> list[ListedImage]:
        """Return the finished images, the most recently used first."""
        pins = self._pins.active()
        found = [
            ListedImage(
                image.path,
                image.source,
                image.key.manifest,
                image.key.platform,
                image.key.recipe,
                image.size,
                pins.get(image.key.name, []),
                image.last_used,
            )
            for image in self._images.all()
        ]
        return sorted(found, key=lambda image: -image.last_used)

    def usage(self) -> Usage:
        """Return the disk usage of the cache."""
        index_bytes = self._orphans.size_of("index") + self._orphans.size_of("checkpoints")
        usage = Usage(index_bytes=index_bytes, trash_bytes=self._orphans.size_of("trash"))
        for blob in self._store.blobs():
            usage.blobs += 1
            usage.blob_bytes += blob.size
        for partial in self._orphans.partials():
            usage.partial += 1
            usage.partial_bytes += partial.size
        for image in self._images.all():
            usage.images += 1
            usage.image_bytes += image.size
        return usage

    def collect(
        self,
        *,
        max_size: int | None = None,
        max_age_seconds: float | None = None,
        max_pin_seconds: float = MAX_PIN_SECONDS,
        dry_run: bool = False,
    ) -> Removed:
        """Remove leftovers, and the least recently used blobs and finished images, by age and total size.

        Leftovers include the stagings of this user's killed pulls, at any path.

        A running pull keeps reading a removed blob; a later pull fetches it again. Partial blobs that are being written
        stay. So do pinned images, with their manifests and configs.

        Args:
            max_size: largest total size of blobs and finished images afterwards, in bytes.
            max_age_seconds: largest time since the last use.
            max_pin_seconds: age at which a pin no longer counts.
            dry_run: remove nothing, only report.
        """
        removed, now = Removed(), time.time()
        patience = _ORPHAN_SECONDS if max_age_seconds is None else min(_ORPHAN_SECONDS, max_age_seconds)
        kept: list[StoredBlob | FinishedImage] = [*self._store.blobs(), *self._images.all()]
        excess = sum(one.size for one in kept) - max_size if max_size is not None else 0
        in_use = self._documents_in_use(max_pin_seconds)
        for one in sorted(kept, key=lambda one: one.last_used):
            if isinstance(one, StoredBlob) and one.digest in in_use:
                continue
            too_old = max_age_seconds is not None and now - one.last_used > max_age_seconds
            if too_old or excess > 0:
                before = removed.freed_bytes
                if isinstance(one, StoredBlob):
                    self._remove(one, removed, dry_run)
                else:
                    self._remove_image(one, removed, dry_run, max_pin_seconds)
                excess -= removed.freed_bytes - before
        for partial in list(self._orphans.partials()):
            if now - partial.last_used > patience and (dry_run or self._orphans.remove_partial(partial.digest)):
                removed.freed_bytes += partial.size
        if not dry_run:
            removed.stagings += StagingRecords(self._store.files).remove_dead()
            self._pins.remove_expired(max_pin_seconds)
            JobTagCache(self._store.files).remove_expired()
            self._images.remove_orphans(_ORPHAN_SECONDS)
            self._orphans.remove(_ORPHAN_SECONDS)
            self._orphans.empty_trash()
            self._forget_refs(lambda ref: self._manifest(ref.manifest) is None)
        return removed

    def verify(self, *, dry_run: bool = False, on_blob: Callable[[StoredBlob, bool], None] | None = None) -> Verified:
        """Read and hash everything, and remove corrupt entries from the cache.

        Args:
            dry_run: remove nothing, only report.
            on_blob: called with each blob and whether it is sound.
        """
        found, buffer = Verified(), bytearray(_READ_SIZE)
        for blob in self._store.blobs():
            sound = self._is_sound(blob, memoryview(buffer), found, dry_run)
            if sound is None:
                continue  # removed meanwhile
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
        for tables in (self._store.indexes, self._store.checkpoints):
            for digest in list(tables):
                if tables.is_damaged(digest):
                    found.corrupt_indexes.append(digest)
                    if not dry_run:
                        tables.remove(digest)
        for partial in list(self._orphans.partials()):
            if self._orphans.has_damaged_partial(partial.digest, mend=not dry_run):
                found.corrupt_partials.append(partial.digest)
        for path, size, sound in self._images.verify():
            found.images += 1
            found.size += size
            if not sound:
                found.corrupt_images.append(path)
                if not dry_run:
                    self._images.discard(path, "corrupt")
        for name in list(damaged_refs(self._store.files)):
            found.corrupt_refs.append(name)
            if not dry_run:
                remove_ref(self._store.files, name)

    def remove(self, name: str, *, dry_run: bool = False) -> Removed:
        """Remove an image by reference, with all that no other reference needs, or a blob by digest.

        A digest may be shortened to its first six or more digits, with or without its algorithm, as listings show it. A
        name that may be both is a reference if the cache knows that reference.

        An image consists of its blobs and finished images. For the digest of a manifest, the finished images are
        removed, too. Pinned images stay, with their manifests, configs and references.

        Raises:
            InvalidReference, InvalidDigest: ``name`` is neither, or the prefix of several digests.
            NotFound: the cache has no such entry.
        """
        removed, mine = Removed(), list[Ref]()
        by_digest = {blob.digest: blob for blob in self._store.blobs()}
        reference = ""
        digits = _DIGITS.fullmatch(name)
        if not (name.startswith(("sha256:", "sha512:")) or (digits and len(name) in _FULL_LENGTHS)):
            reference = str(Reference.parse(name.removeprefix("docker://")))
            mine = [ref for ref in read_refs(self._store.files) if ref.reference == reference]
        wanted: Iterable[Digest]
        if not mine and (found := self._find_digest(name, digits, by_digest)) is not None:
            wanted = [found]
        else:
            others = [ref for ref in read_refs(self._store.files) if ref.reference != reference]
            needed = {digest for ref in others for digest in self._digests(ref)}
            wanted = {digest: None for ref in mine for digest in self._digests(ref) if digest not in needed}
        manifests = set(wanted)
        for image in list(self._images.all()):
            if image.key.manifest in manifests:
                self._remove_image(image, removed, dry_run, MAX_PIN_SECONDS)
        in_use = self._documents_in_use()
        for digest in wanted:
            if digest in by_digest and digest not in in_use:
                self._remove(by_digest[digest], removed, dry_run)
            elif digest in in_use and not removed.pinned:
                removed.pinned.append(self._store.blob_path(digest))
        if mine and not dry_run:
            self._forget_refs(lambda ref: ref.reference == reference and ref.manifest not in in_use)
        if not (removed.blobs or removed.images or removed.pinned or mine):
            raise NotFound(repr(name), f"cache {self.root}", "fastpull cache ls shows what it has")
        if not dry_run:
            self._orphans.empty_trash()
        return removed

    def _find_digest(self, name: str, match: re.Match[str] | None, blobs: Iterable[Digest]) -> Digest | None:
        """Return the cached digest that a name is or begins; None if the name does not have the form of a digest."""
        if match is None:
            return Digest.parse(name) if name.startswith(("sha256:", "sha512:")) else None
        known = {*blobs, *(image.key.manifest for image in self._images.all())}
        algorithm, digits = match["algorithm"], match["digits"]
        found = [one for one in known if one.encoded.startswith(digits) and algorithm in (None, one.algorithm)]
        if len(found) > 1:
            raise InvalidDigest(name, f"{len(found)} digests in the cache begin like this")
        if not found and algorithm is not None and len(digits) in _FULL_LENGTHS:
            return Digest.parse(name)
        return found[0] if found else None

    def _documents_in_use(self, max_pin_seconds: float = MAX_PIN_SECONDS) -> set[Digest]:
        """Return manifests, configs and indexes of the finished images that are pinned, even before they are built."""
        names = (name.partition(".")[0] for name in self._pins.active(max_pin_seconds))
        manifests = {digest for name in names for algorithm in ALGORITHMS if (digest := digest_of(algorithm, name))}
        found = set(manifests)
        for digest in manifests:
            if manifest := self._manifest(digest):
                found.add(manifest.config.digest)
        return found | {ref.top for ref in read_refs(self._store.files) if ref.manifest in manifests}

    def _remove(self, blob: StoredBlob, removed: Removed, dry_run: bool) -> None:
        if dry_run or self._store.remove(blob.digest):
            removed.blobs.append(blob)
            removed.freed_bytes += blob.size

    def _remove_image(self, image: FinishedImage, removed: Removed, dry_run: bool, max_pin_seconds: float) -> None:
        """Remove a finished image unless it is pinned. Holding its lock makes later pins wait."""
        lock = self._images.lock(image.key)
        if not lock.try_acquire():
            return  # in use
        try:
            if image.key.name in self._pins.active(max_pin_seconds):
                removed.pinned.append(image.path)
            elif dry_run or self._images.discard(image.path, "removed"):
                removed.images.append(RemovedImage(image.path, image.size))
                removed.freed_bytes += image.size
        finally:
            lock.release()

    def _is_sound(self, blob: StoredBlob, buffer: memoryview, found: Verified, dry_run: bool) -> bool | None:
        """Return whether a blob is sound, None if it is gone. Damaged metadata of a sound blob is rewritten."""
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
        if self._store.has_damaged_metadata(opened, fingerprint.hexdigest()):
            found.corrupt_seals.append(blob.digest)
            if not dry_run:
                self._store.rewrite_metadata(opened, fingerprint.hexdigest())
        return True

    def _digests(self, ref: Ref) -> list[Digest]:
        """Return the digests of an image: its manifest and, if the manifest is present, config and layers."""
        manifest = self._manifest(ref.manifest)
        described: tuple[Descriptor, ...] = (manifest.config, *manifest.layers) if manifest else ()
        return list(dict.fromkeys([ref.top, ref.manifest, *(descriptor.digest for descriptor in described)]))

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
                ref.remove(self._store.files)
