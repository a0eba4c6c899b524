"""What references resolved to: for listings, for offline use, and for whoever looks after the cache.

Nothing trusts them: what they name is verified when it is read.
"""

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
        platform: that it was resolved for, in its canonical spelling.
        manifest: digest of the image's manifest.
        top: digest of what the reference names, the manifest or an index.
        time: of the resolution, in seconds since the epoch.
    """

    reference: str
    platform: str
    manifest: Digest
    top: Digest
    time: float

    @classmethod
    def now(cls, reference: str, platform: str, manifest: Digest, top: Digest) -> Self:
        """A reference that was resolved just now."""
        return cls(reference, platform, manifest, top, time.time())

    @classmethod
    def find(cls, files: Files, reference: str, platform: str) -> Self | None:
        """What a reference resolved to the last time, if the cache knows."""
        content = files.read(_path(files, _name(reference, platform)))
        return cls.from_bytes(content) if content is not None else None

    def keep(self, files: Files) -> None:
        """Remembers it, in place of what it resolved to before."""
        content = line.to_bytes({**asdict(self), "manifest": str(self.manifest), "top": str(self.top)})
        files.write(_path(files, self.name), content)

    def forget(self, files: Files) -> None:
        """Removes it. The image's blobs stay."""
        remove_ref(files, self.name)

    @property
    def name(self) -> str:
        """Of its file."""
        return _name(self.reference, self.platform)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """Reads a file; None for anything that is not as it was written."""
        try:
            value = line.from_bytes(content)
            manifest = Digest.parse(value["manifest"])
            top = Digest.parse(value["top"]) if "top" in value else manifest  # written before there was one
            return cls(value["reference"], value["platform"], manifest, top, float(value["time"]))
        except (ValueError, KeyError, TypeError, InvalidDigest):
            return None


def _name(reference: str, platform: str) -> str:
    return Digest.of(f"{reference} {platform}".encode()).encoded


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
