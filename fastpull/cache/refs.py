"""What references resolved to: for listings, for offline use, and for whoever looks after the cache.

What they name is verified when it is read. That the name meant it is the word of whoever wrote it, so that in a shared
cache each user has a directory of their own: ``refs/user-<number>/``.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from fastpull.cache import checksummed_json
from fastpull.errors import CacheError, InvalidDigest
from fastpull.oci.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastpull.cache.files import CacheFiles


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
    def find(cls, files: CacheFiles, reference: str, platform: str) -> Self | None:
        """What a reference resolved to the last time, if the cache knows.

        The word of this user, of root or of the cache's owner counts, and nobody else's.
        """
        name = _name(reference, platform)
        found = files.read_with_state(_path(files, name))
        if found is None and files.is_shared and files.access.owner != os.geteuid():
            found = files.read_with_state(_path(files, name, files.access.owner))
        if found is None or not files.access.trusts(found[1].st_uid):
            return None
        ref = cls.from_bytes(found[0])
        return ref if ref is not None and ref.name == name else None

    def save(self, files: CacheFiles) -> None:
        """Remembers it, in place of what it resolved to before."""
        content = checksummed_json.to_bytes({**asdict(self), "manifest": str(self.manifest), "top": str(self.top)})
        files.write(_path(files, self.name), content)

    def remove(self, files: CacheFiles) -> None:
        """Removes it. The image's blobs stay."""
        for inner, name in _names(files):
            if name == self.name:
                remove_ref(files, os.path.join(inner, name))

    @property
    def name(self) -> str:
        """Of its file."""
        return _name(self.reference, self.platform)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """Reads a file; None for anything that is not as it was written."""
        try:
            value = checksummed_json.from_bytes(content)
            manifest = Digest.parse(value["manifest"])
            top = Digest.parse(value["top"]) if "top" in value else manifest  # written before there was one
            return cls(str(value["reference"]), str(value["platform"]), manifest, top, float(value["time"]))
        except (ValueError, KeyError, TypeError, InvalidDigest):
            return None


def _name(reference: str, platform: str) -> str:
    return Digest.of(f"{reference} {platform}".encode()).encoded


def read_refs(files: CacheFiles) -> Iterator[Ref]:
    """The references of a cache, of all users; of several for one name the latest. Damaged files are passed over."""
    found: dict[str, Ref] = {}
    for inner, name in _names(files):
        ref = _read(files, inner, name)
        if ref is not None and (name not in found or found[name].time < ref.time):
            found[name] = ref
    yield from found.values()


def damaged_refs(files: CacheFiles) -> Iterator[str]:
    """The names of the files that are passed over, in the directory of references."""
    for inner, name in _names(files):
        try:
            ref = _read(files, inner, name)
        except CacheError:
            continue  # another user's
        if ref is None or ref.name != name:
            yield os.path.join(inner, name)


def remove_ref(files: CacheFiles, name: str) -> None:
    """Removes a file of that name in the directory of references."""
    with contextlib.suppress(CacheError):  # another user's
        files.remove(os.path.join(files.root, "refs", name))


def _names(files: CacheFiles) -> Iterator[tuple[str, str]]:
    """Subfolders and names of all references."""
    for nested in (False, True):
        for inner, name, state in files.entries("refs", nested=nested):
            if nested or not stat.S_ISDIR(state.st_mode) or not name.startswith("user-"):
                yield inner, name


def _read(files: CacheFiles, inner: str, name: str) -> Ref | None:
    content = files.read(os.path.join(files.root, "refs", inner, name))
    return Ref.from_bytes(content) if content is not None else None


def _path(files: CacheFiles, name: str, user: int | None = None) -> str:
    return os.path.join(files.user_directory("refs", user), name)
