"""What those who look after a cache are told."""

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
    """An image that the cache knows by name.

    Attributes:
        reference, platform: as it was resolved.
        digest: of its manifest.
        size: of its layers, in bytes.
        present: how much of that is in the cache.
        finished: bytes of the finished images of it.
        last_used: seconds since the epoch.
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
    """A finished image, as a listing tells it.

    Attributes:
        path: of the file.
        source: that it was made from first.
        manifest, platform: of the image.
        recipe: how it was made.
        size: in bytes.
        pins: who uses it.
        last_used: seconds since the epoch.
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
    """What a cache takes on its disk.

    Attributes:
        blobs, partial, images: numbers of complete and of unfinished blobs, and of finished images.
        blob_bytes, partial_bytes, image_bytes, index_bytes, trash_bytes: what they take.
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
        """All together."""
        return self.blob_bytes + self.partial_bytes + self.image_bytes + self.index_bytes + self.trash_bytes


@dataclass(frozen=True, slots=True)
class RemovedImage:
    """A finished image that was removed.

    Attributes:
        path: where it was.
        size: in bytes.
    """

    path: str
    size: int


@dataclass(slots=True)
class Removed:
    """What was, or would be, removed.

    Attributes:
        blobs: their digests and sizes.
        images: paths and sizes of finished images.
        pinned: paths of those that stay because somebody uses them.
        stagings: paths of what killed pulls of this user had left beside their outputs.
        freed_bytes: with partial blobs and leftovers, without stagings.
    """

    blobs: list[StoredBlob] = field(default_factory=list)
    images: list[RemovedImage] = field(default_factory=list)
    pinned: list[str] = field(default_factory=list)
    stagings: list[str] = field(default_factory=list)
    freed_bytes: int = 0

    def add(self, other: Removed) -> None:
        """Counts what else was removed."""
        self.blobs += other.blobs
        self.images += other.images
        self.pinned += other.pinned
        self.stagings += other.stagings
        self.freed_bytes += other.freed_bytes


@dataclass(slots=True)
class Verified:
    """What a verification found.

    Attributes:
        blobs, images: how many were read.
        size: their bytes.
        corrupt: digests of those that were not what their name says; they were taken out of the cache.
        corrupt_indexes: of layers whose index was damaged; it was removed, and the next pull makes it again.
        corrupt_seals: of sound blobs with a damaged seal, which is written anew.
        corrupt_partials: of unfinished blobs with damaged ranges or records, which will be fetched again.
        corrupt_refs: names of damaged files in ``refs``; they were removed.
        corrupt_images: paths of finished images that are not what they were when they were sealed; they were taken
            out of the cache, and are made again when somebody wants them.
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
        """How many things were damaged."""
        layers = (self.corrupt, self.corrupt_indexes, self.corrupt_seals, self.corrupt_partials)
        return sum(len(digests) for digests in layers) + len(self.corrupt_refs) + len(self.corrupt_images)
