"""References and the digests that they resolved to: for listings, offline use and cache maintenance.

The content is verified by digest when it is read. The mapping from the reference is a statement of its author. So in a
shared cache each user has a separate directory, ``refs/user-<number>/``.
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
    """The resolution of one reference for one platform.

    Attributes:
        reference: reference, as resolved.
        platform: requested platform, in canonical spelling.
        manifest: digest of the image's manifest.
        top: digest that the reference names, of the manifest or of an index.
        time: time of the resolution, in seconds since the epoch.
    """

    reference: str
    platform: str
    manifest: Digest
    top: Digest
    time: float

    @classmethod
    def now(cls, reference: str, platform: str, manifest: Digest, top: Digest) -> Self:
        """Return a reference resolved at this moment."""
        return cls(reference, platform, manifest, top, time.time())

    @classmethod
    def find(cls, files: CacheFiles, reference: str, platform: str) -> Self | None:
        """Return the latest resolution of a reference, if the cache has one.

        Only entries of this user, root and the cache's owner count.
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
        """Store the resolution, replacing an earlier one."""
        content = checksummed_json.to_bytes({**asdict(self), "manifest": str(self.manifest), "top": str(self.top)})
        files.write(_path(files, self.name), content)

    def remove(self, files: CacheFiles) -> None:
        """Remove the resolution. The blobs of the image stay."""
        for inner, name in _names(files):
            if name == self.name:
                remove_ref(files, os.path.join(inner, name))

    @property
    def name(self) -> str:
        """Name of the file."""
        return _name(self.reference, self.platform)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """Parse a file; return None if it is damaged."""
        try:
            value = checksummed_json.from_bytes(content)
            manifest = Digest.parse(value["manifest"])
            top = Digest.parse(value["top"]) if "top" in value else manifest  # absent in files of early versions
            return cls(str(value["reference"]), str(value["platform"]), manifest, top, float(value["time"]))
        except (ValueError, KeyError, TypeError, InvalidDigest):
            return None


def _name(reference: str, platform: str) -> str:
    return Digest.of(f"{reference} {platform}".encode()).encoded


def read_refs(files: CacheFiles) -> Iterator[Ref]:
    """Iterate over the references of all users, the latest for each name. Damaged files are skipped."""
    found: dict[str, Ref] = {}
    for inner, name in _names(files):
        ref = _read(files, inner, name)
        if ref is not None and (name not in found or found[name].time < ref.time):
            found[name] = ref
    yield from found.values()


def damaged_refs(files: CacheFiles) -> Iterator[str]:
    """Iterate over the names of the damaged files in the directory of references."""
    for inner, name in _names(files):
        try:
            ref = _read(files, inner, name)
        except CacheError:
            continue  # another user owns it
        if ref is None or ref.name != name:
            yield os.path.join(inner, name)


def remove_ref(files: CacheFiles, name: str) -> None:
    """Remove a file by name from the directory of references."""
    with contextlib.suppress(CacheError):  # another user owns it
        files.remove(os.path.join(files.root, "refs", name))


def _names(files: CacheFiles) -> Iterator[tuple[str, str]]:
    """Iterate over the subdirectories and names of all references."""
    for nested in (False, True):
        for inner, name, state in files.entries("refs", nested=nested):
            if nested or not stat.S_ISDIR(state.st_mode) or not name.startswith("user-"):
                yield inner, name


def _read(files: CacheFiles, inner: str, name: str) -> Ref | None:
    content = files.read(os.path.join(files.root, "refs", inner, name))
    return Ref.from_bytes(content) if content is not None else None


def _path(files: CacheFiles, name: str, user: int | None = None) -> str:
    return os.path.join(files.user_directory("refs", user), name)
