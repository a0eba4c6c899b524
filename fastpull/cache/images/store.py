"""Finished images: squashfs files, ready for use.

::

    <root>/v1/images/<algorithm>/<manifest>.<recipe>.sqsh          the file, read-only
    <root>/v1/images/<algorithm>/<manifest>.<recipe>.sqsh.seal     its metadata: key, facts, fingerprint
    <root>/v1/images/user-<number>/...                             the images of one user, in a shared cache

``<manifest>`` is the hexadecimal digest of the image's manifest. ``<recipe>`` is a hash of the platform and of
everything else that determines the bytes. No digest proves that a file matches its name, so the user who built it must
be trusted. In a shared cache, each user has a directory that no other user can enter, unless the user declares trust in
the others: where others can rename files, the owner of a file proves nothing about its name.

The builder of an image holds its lock. Readers take no lock. A held lock means that a file may be about to be removed,
so a client that wants the image waits. Every method blocks.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import xxhash

from fastpull.cache import checksummed_json
from fastpull.cache.blob_metadata import BlobMetadata
from fastpull.cache.directory import CacheDirectory, NotAFile
from fastpull.cache.errors import cache_errors
from fastpull.cache.files import user_directory_name
from fastpull.errors import CacheError, InvalidDigest
from fastpull.oci.digest import Digest

if TYPE_CHECKING:
    from fastpull.cache.files import CacheFiles
    from fastpull.cache.locking.file_lock import FileLock

_log = logging.getLogger(__name__)

_IMAGE = ".sqsh"
_METADATA_SUFFIX = ".seal"
_DRAFT = ".draft"
_READ_SIZE = 1 << 20
_FACTS: dict[str, tuple[type, type]] = {
    "codecs": (dict, str),
    "compression": (str, object),
    "left_out": (dict, int),
    "warnings": (list, str),
}


@dataclass(frozen=True, slots=True)
class ImageKey:
    """The identity of a finished image.

    Attributes:
        manifest: digest of the image's manifest.
        platform: platform of the image.
        recipe: everything else that determines the bytes, as JSON.
        maker: number of the only user whose file counts; None where every user with write access is trusted.
    """

    manifest: Digest
    platform: str
    recipe: Mapping[str, Any]
    maker: int | None = None

    @property
    def name(self) -> str:
        """Name of the file, without its suffix."""
        facts = json.dumps({"platform": self.platform, "recipe": self.recipe, "maker": self.maker}, sort_keys=True)
        return f"{self.manifest.encoded}.{Digest.of(facts.encode()).encoded[:32]}"


@dataclass(frozen=True, slots=True)
class FinishedImage:
    """A finished image in the cache.

    Attributes:
        path: absolute path of the file.
        key: identity of the image.
        source: source of the first build, as the user wrote it.
        metadata: what was verified.
        mtime_ns: modification time of the file when its metadata was written; any change of the file changes it.
        facts: figures of the build report.
        last_used: time of the last use, in seconds since the epoch.
    """

    path: str
    key: ImageKey
    source: str
    metadata: BlobMetadata
    mtime_ns: int
    facts: Mapping[str, Any]
    last_used: float

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.metadata.size

    def to_bytes(self) -> bytes:
        """Return the content of the metadata file."""
        value = {
            "manifest": str(self.key.manifest),
            "platform": self.key.platform,
            "recipe": self.key.recipe,
            "maker": self.key.maker,
            "source": self.source,
            "mtime_ns": self.mtime_ns,
            "facts": self.facts,
            "seal": asdict(self.metadata),
        }
        return checksummed_json.to_bytes(value)

    @classmethod
    def from_bytes(cls, content: bytes, path: str, last_used: float) -> FinishedImage | None:
        """Parse a metadata file; return None if it is damaged or does not match the path."""
        try:
            value = checksummed_json.from_bytes(content)
            maker = None if value["maker"] is None else int(value["maker"])
            key = ImageKey(Digest.parse(value["manifest"]), str(value["platform"]), dict(value["recipe"]), maker)
            metadata = BlobMetadata.of(value["seal"])
            source, mtime_ns, facts = str(value["source"]), int(value["mtime_ns"]), dict(value["facts"])
        except (ValueError, KeyError, TypeError, InvalidDigest):
            return None
        if not _are_facts(facts) or not isinstance(key.recipe.get("dialects", []), list):
            return None
        if metadata is None or os.path.basename(path) != key.name + _IMAGE:
            return None
        return cls(path, key, source, metadata, mtime_ns, facts, last_used)


class ImageStore:
    """The finished images of a cache.

    Args:
        files: files of the cache.

    Raises:
        CacheError: from every method; the filesystem refuses.
    """

    def __init__(self, files: CacheFiles) -> None:
        self._files = files

    def find(self, key: ImageKey, is_stopped: Callable[[], bool] = lambda: False) -> FinishedImage | None:
        """Return a finished image that is safe to use, and record the use; None for a miss.

        The file is read and hashed first if its modification time differs from its metadata, or if its metadata was
        written unsynced under an earlier boot. A damaged image is removed from the cache, and counts as a miss.

        Args:
            key: identity of the image.
            is_stopped: polled during hashing; the result is a miss once it returns true.
        """
        path = self._path(key)
        state = self._files.lookup(path)
        if state is None:
            return None
        with cache_errors():
            image = self._read(path) if stat.S_ISREG(state.st_mode) else None
            if image is not None and state.st_size == image.size and self._is_from(key.maker, path, state):
                is_known = image.metadata.is_fresh and state.st_mtime_ns == image.mtime_ns
                if not is_known:
                    image = self._verified(image, is_stopped)
                    if is_stopped():
                        return None
                if image is not None:
                    self._files.touch(path + _METADATA_SUFFIX)
                    return image
        self.quarantine(key)
        return None

    def lock(self, key: ImageKey) -> FileLock:
        """Return the lock for building or removing an image."""
        return self._files.lock(f"image-{key.name}")

    @contextlib.contextmanager
    def open_draft(self, key: ImageKey) -> Iterator[str]:
        """Yield the path at which the holder of the lock builds an image. The path leads through an open directory."""
        with cache_errors(), self._files.at(self._path(key), create=True) as (directory, _):
            if key.maker is not None and directory.state().st_uid != key.maker:
                raise CacheError(
                    directory.path, "this directory of finished images belongs to another user; remove it", errno.EPERM
                )
            yield f"/proc/self/fd/{directory.fd}/{_draft(key)}"

    def publish(self, key: ImageKey, source: str, facts: Mapping[str, Any], sync: bool) -> FinishedImage:
        """Move a draft to its final name. The caller holds the lock.

        Args:
            key: identity of the image.
            source: source of the image.
            facts: figures of the build, as JSON.
            sync: wait until file and names are on disk.
        """
        path, draft = self._path(key), _draft(key)
        with cache_errors(), self._files.at(path) as (directory, name):
            fd = directory.open(draft)
            try:
                fingerprint = _fingerprint(fd, os.fstat(fd).st_size)
                os.fchmod(fd, self._files.file_mode)
                if sync:
                    os.fsync(fd)
                state = os.fstat(fd)
            finally:
                os.close(fd)
            metadata = BlobMetadata.now(state.st_size, fingerprint, sync)
            image = FinishedImage(path, key, source, metadata, state.st_mtime_ns, facts, time.time())
            self._files.write(path + _METADATA_SUFFIX, image.to_bytes(), sync, self._files.note_mode)
            directory.publish(draft, directory, name)
            if sync:
                directory.sync()
        _log.debug("published finished image %s, %d bytes", path, image.size)
        return image

    def all(self) -> Iterator[FinishedImage]:
        """Iterate over the finished images. Images with damaged metadata are skipped."""
        for path in self._paths():
            image = self._read(path)
            if image is not None:
                yield image

    def verify(self) -> Iterator[tuple[str, int, bool]]:
        """Read and hash every image; yield path, size and whether it matches its metadata."""
        for path in self._paths():
            with cache_errors():
                image = self._read(path)
                sound = image is not None and self._verified(image, renew=False) is not None
            state = self._files.lookup(path)
            if state is not None:  # still there
                yield path, state.st_size, sound

    def quarantine(self, key: ImageKey) -> None:
        """Move a damaged image to ``trash``, and remove its metadata."""
        self.discard(self._path(key), "corrupt")

    def discard(self, path: str, why: str) -> bool:
        """Remove an image by path, and return whether it existed. Open descriptors of it stay valid."""
        if not self._files.move_to_trash(path, why):
            return False
        self._files.unlink(path + _METADATA_SUFFIX)
        _log.debug("removed finished image %s: %s", path, why)
        return True

    def remove_orphans(self, older_than_seconds: float) -> None:
        """Remove metadata without an image, left by processes killed just before publication."""
        latest = time.time() - older_than_seconds
        for algorithm, name, state in self._files.entries("images"):
            metadata = os.path.join(self._directory(algorithm), name)
            if (
                name.endswith(_METADATA_SUFFIX)
                and state.st_mtime < latest
                and not self._files.lookup(metadata.removesuffix(_METADATA_SUFFIX))
            ):
                self._files.unlink(metadata)

    def _paths(self) -> Iterator[str]:
        for algorithm, name, state in self._files.entries("images"):
            if name.endswith(_IMAGE) and stat.S_ISREG(state.st_mode):
                yield os.path.join(self._directory(algorithm), name)

    def _directory(self, algorithm: str) -> str:
        return os.path.join(self._files.root, "images", algorithm)

    def _path(self, key: ImageKey) -> str:
        directory = self._directory(key.manifest.algorithm)
        if key.maker is not None:
            directory = self._directory(user_directory_name(key.maker))
        return os.path.join(directory, key.name + _IMAGE)

    def _read(self, path: str) -> FinishedImage | None:
        found = self._files.read_with_state(path + _METADATA_SUFFIX)
        return None if found is None else FinishedImage.from_bytes(found[0], path, found[1].st_mtime)

    def _is_from(self, maker: int | None, path: str, state: os.stat_result) -> bool:
        """Return whether image and metadata belong to a permitted builder."""
        metadata = self._files.lookup(path + _METADATA_SUFFIX)
        owners = {state.st_uid, -1 if metadata is None else metadata.st_uid}
        if maker is not None:
            return owners == {maker}
        return self._files.is_shared or all(map(self._files.access.trusts, owners))

    def _verified(
        self, image: FinishedImage, is_stopped: Callable[[], bool] = lambda: False, *, renew: bool = True
    ) -> FinishedImage | None:
        """Hash an image and renew its metadata; return None if it is damaged or gone."""
        try:
            fd = self._files.open(image.path)
        except NotAFile:
            return None
        if fd is None:
            return None
        try:
            state = os.fstat(fd)
            if state.st_size != image.size or _fingerprint(fd, image.size, is_stopped) != image.metadata.fingerprint:
                return None
        finally:
            os.close(fd)
        if renew:
            # data that survived a boot is on disk
            metadata = BlobMetadata.now(
                image.size, image.metadata.fingerprint, image.metadata.synced or not image.metadata.is_fresh
            )
            image = replace(image, metadata=metadata, mtime_ns=state.st_mtime_ns)
            with contextlib.suppress(OSError):  # another user's
                self._files.write(image.path + _METADATA_SUFFIX, image.to_bytes(), mode=self._files.note_mode)
        return image


def open_image(path: str) -> int | None:
    """Open a finished image for reading, checking every directory of its path; return None if it is gone.

    Raises:
        OSError: the system refuses, or it is not a regular file.
    """
    root, version, images, directory, name = path.rsplit("/", 4)
    try:
        with contextlib.ExitStack() as stack:
            opened = stack.enter_context(CacheDirectory.at(root))
            for inner in (version, images, directory):
                opened = stack.enter_context(opened.subdirectory(inner))
            return opened.open(name)
    except (FileNotFoundError, NotAFile):
        return None


def _are_facts(facts: Mapping[str, Any]) -> bool:
    """Return whether facts have the types of a report: numbers, except for the names in `_FACTS`."""
    for name, value in facts.items():
        kind, inner = _FACTS.get(name, (int, object))
        if not isinstance(value, kind) or (isinstance(value, int) and value < 0):
            return False
        values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        if not all(isinstance(one, inner) for one in values):
            return False
    return "path" not in facts and "origin" not in facts


def _draft(key: ImageKey) -> str:
    return f".{key.name}{_DRAFT}"


def _fingerprint(fd: int, limit: int, is_stopped: Callable[[], bool] = lambda: False) -> str:
    """Hash a file, up to ``limit`` bytes in case it grows."""
    hasher, buffer, at = xxhash.xxh3_64(), bytearray(_READ_SIZE), 0
    view = memoryview(buffer)
    while at < limit and (size := os.preadv(fd, [view[: limit - at]], at)) and not is_stopped():
        hasher.update(view[:size])
        at += size
    return hasher.hexdigest()
