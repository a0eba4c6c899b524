"""Results of cache maintenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastpull.cache.images.pins import Pin
    from fastpull.cache.store import StoredBlob
    from fastpull.oci.digest import Digest


@dataclass(frozen=True, slots=True)
class CachedImage:
    """An image that the cache knows by reference.

    Attributes:
        reference, platform: as resolved.
        digest: digest of its manifest.
        size: size of its layers, in bytes.
        present: size of its layers in the cache, in bytes.
        finished: size of its finished images, in bytes.
        last_used: time of the last use, in seconds since the epoch.
    """

    reference: str
    platform: str
    digest: Digest
    size: int
    present: int
    finished: int
    last_used: float


@dataclass(frozen=True, slots=True)
class ListedImage:
    """A finished image in a listing.

    Attributes:
        path: path of the file.
        source: source of the first build.
        manifest, platform: manifest and platform of the image.
        recipe: settings of the build.
        size: size in bytes.
        pins: its active pins.
        last_used: time of the last use, in seconds since the epoch.
    """

    path: str
    source: str
    manifest: Digest
    platform: str
    recipe: Mapping[str, Any]
    size: int
    pins: list[Pin]
    last_used: float


@dataclass(slots=True)
class Usage:
    """Disk usage of a cache.

    Attributes:
        blobs, partial, images: numbers of complete and partial blobs, and of finished images.
        blob_bytes, partial_bytes, image_bytes, trash_bytes: their sizes on disk.
        index_bytes: size of layer indexes and checkpoints.
    """

    blobs: int = 0
    blob_bytes: int = 0
    partial: int = 0
    partial_bytes: int = 0
    images: int = 0
    image_bytes: int = 0
    index_bytes: int = 0
    trash_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Sum of all sizes."""
        return self.blob_bytes + self.partial_bytes + self.image_bytes + self.index_bytes + self.trash_bytes


@dataclass(frozen=True, slots=True)
class RemovedImage:
    """A removed finished image.

    Attributes:
        path: former path.
        size: size in bytes.
    """

    path: str
    size: int


@dataclass(slots=True)
class Removed:
    """Entries that were removed, or would be in a dry run.

    Attributes:
        blobs: digests and sizes of blobs.
        images: paths and sizes of finished images.
        pinned: paths of finished images that stay because they are in use.
        stagings: paths of staging directories that killed pulls of this user left beside their outputs.
        freed_bytes: freed space, including partial blobs and leftovers, without stagings.
    """

    blobs: list[StoredBlob] = field(default_factory=list)
    images: list[RemovedImage] = field(default_factory=list)
    pinned: list[str] = field(default_factory=list)
    stagings: list[str] = field(default_factory=list)
    freed_bytes: int = 0

    def add(self, other: Removed) -> None:
        """Add the entries of another result."""
        self.blobs += other.blobs
        self.images += other.images
        self.pinned += other.pinned
        self.stagings += other.stagings
        self.freed_bytes += other.freed_bytes


@dataclass(slots=True)
class Verified:
    """Result of a verification.

    Attributes:
        blobs, images: numbers of files read.
        size: their total size in bytes.
        corrupt: digests of blobs that did not match; they were removed from the cache.
        corrupt_indexes: layers whose damaged index or checkpoints were removed; the next pull rebuilds it.
        corrupt_seals: sound blobs whose damaged metadata was rewritten.
        corrupt_partials: partial blobs with damaged ranges or records, which will be fetched again.
        corrupt_refs: names of damaged files in ``refs``; they were removed.
        corrupt_images: paths of finished images that did not match their metadata; they were removed from the cache,
            and are rebuilt on demand.
    """

    blobs: int = 0
    images: int = 0
    size: int = 0
    corrupt: list[Digest] = field(default_factory=list)
    corrupt_indexes: list[Digest] = field(default_factory=list)
    corrupt_seals: list[Digest] = field(default_factory=list)
    corrupt_partials: list[Digest] = field(default_factory=list)
    corrupt_refs: list[str] = field(default_factory=list)
    corrupt_images: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether nothing was damaged."""
        return self.damaged == 0

    @property
    def damaged(self) -> int:
        """Number of damaged entries."""
        layers = (self.corrupt, self.corrupt_indexes, self.corrupt_seals, self.corrupt_partials)
        return sum(len(digests) for digests in layers) + len(self.corrupt_refs) + len(self.corrupt_images)
