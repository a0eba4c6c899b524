"""What references resolved to: for listings, and for whoever looks after the cache. Nothing trusts them."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from fastpull.cache import line
from fastpull.errors import InvalidDigest
from fastpull.oci.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastpull.cache.files import Files


@dataclass(frozen=True, slots=True)
class Ref:
    """One reference on one platform.

    Attributes:
        reference: as it was resolved.
        platform: that it was resolved for.
        manifest: digest of the image's manifest.
        time: of the resolution, in seconds since the epoch.
    """

    reference: str
    platform: str
    manifest: Digest
    time: float

    @classmethod
    def now(cls, reference: str, platform: str, manifest: Digest) -> Self:
        """A reference that was resolved just now."""
        return cls(reference, platform, manifest, time.time())

    def keep(self, files: Files) -> None:
        """Remembers it, in place of what it resolved to before."""
        files.write(_path(files, self.name), line.to_bytes({**asdict(self), "manifest": str(self.manifest)}))

    def forget(self, files: Files) -> None:
        """Removes it. The image's blobs stay."""
        remove_ref(files, self.name)

    @property
    def name(self) -> str:
        """Of its file."""
        return Digest.of(f"{self.reference} {self.platform}".encode()).encoded

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """Reads a file; None for anything that is not as it was written."""
        try:
            value = line.from_bytes(content)
            return cls(value["reference"], value["platform"], Digest.parse(value["manifest"]), float(value["time"]))
        except (ValueError, KeyError, TypeError, InvalidDigest):
            return None


def read_refs(files: Files) -> Iterator[Ref]:
    """The references of a cache; damaged files are passed over."""
    for _, name, _ in files.listed("refs", nested=False):
        content = files.read(_path(files, name))
        ref = Ref.from_bytes(content) if content is not None else None
        if ref is not None:
            yield ref


def damaged_refs(files: Files) -> Iterator[str]:
    """The names of the files that are passed over."""
    for _, name, _ in files.listed("refs", nested=False):
        content = files.read(_path(files, name))
        ref = Ref.from_bytes(content) if content is not None else None
        if content is not None and (ref is None or ref.name != name):
            yield name


def remove_ref(files: Files, name: str) -> None:
    """Removes a file of that name."""
    files.unlink(_path(files, name))


def _path(files: Files, name: str) -> str:
    return os.path.join(files.root, "refs", name)
