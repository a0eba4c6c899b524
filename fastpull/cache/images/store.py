"""Finished images: squashfs files that need not be made again.

::

    <root>/v1/images/<algorithm>/<manifest>.<recipe>.sqsh          the file, read-only
    <root>/v1/images/<algorithm>/<manifest>.<recipe>.sqsh.seal     what it is, and what was verified
    <root>/v1/images/user-<number>/...                             the same of one user, in a cache that others write to

``<manifest>`` is the hexadecimal digest of the image's manifest, ``<recipe>`` a hash of the platform and of all else
that decides on the bytes. No digest tells whether a file is what its name says: whoever made it has to be trusted. So
in a cache that others may write to, users have files of their own, in a folder that nobody else can enter, unless they
say that they trust those others: where others can rename files, the owner of a file says nothing about its name.

Whoever makes one holds its lock. Readers take none; while somebody holds the lock a file may be about to go, so that
who wants it waits. Every method blocks.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import xxhash

from fastpull.cache import checksummed_json
from fastpull.cache.blob_metadata import BlobMetadata
from fastpull.cache.files import local_errors, user_folder_name
from fastpull.cache.folder import CacheFolder, NotAFile
from fastpull.errors import CacheError, InvalidDigest
from fastpull.oci.digest import Digest

if TYPE_CHECKING:
    from fastpull.cache.files import CacheFiles
    from fastpull.cache.locking.file_lock import FileLock

_IMAGE = ".sqsh"
_SEAL = ".seal"
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
    """What a finished image is the only one of.

    Attributes:
        manifest: digest of the image's manifest.
        platform: of the image.
        recipe: all else that decides on the bytes, as JSON has it.
        maker: the only user whose file it may be; None where whoever may write to the cache is trusted with that.
    """

    manifest: Digest
    platform: str
    recipe: Mapping[str, Any]
    maker: int | None = None

    @property
    def name(self) -> str:
        """Of its file, without the ending."""
        facts = json.dumps({"platform": self.platform, "recipe": self.recipe, "maker": self.maker}, sort_keys=True)
        return f"{self.manifest.encoded}.{Digest.of(facts.encode()).encoded[:32]}"


@dataclass(frozen=True, slots=True)
class FinishedImage:
    """A finished image of the cache.

    Attributes:
        path: of the file, absolute.
        key: what it was made of.
        source: that it was made from first, as the user wrote it.
        seal: what was verified.
        mtime_ns: of the file when it was sealed: who changes the file changes that, too.
        facts: what the report of its making told.
        last_used: seconds since the epoch.
    """

    path: str
    key: ImageKey
    source: str
    seal: BlobMetadata
    mtime_ns: int
    facts: Mapping[str, Any]
    last_used: float

    @property
    def size(self) -> int:
        """In bytes."""
        return self.seal.size

    def to_bytes(self) -> bytes:
        """What stands beside the file."""
        value = {
            "manifest": str(self.key.manifest),
            "platform": self.key.platform,
            "recipe": self.key.recipe,
            "maker": self.key.maker,
            "source": self.source,
            "mtime_ns": self.mtime_ns,
            "facts": self.facts,
            "seal": asdict(self.seal),
        }
        return checksummed_json.to_bytes(value)

    @classmethod
    def from_bytes(cls, content: bytes, path: str, last_used: float) -> FinishedImage | None:
        """Reads what stands beside a file; None for anything that is not as it was written."""
        try:
            value = checksummed_json.from_bytes(content)
            maker = None if value["maker"] is None else int(value["maker"])
            key = ImageKey(Digest.parse(value["manifest"]), str(value["platform"]), dict(value["recipe"]), maker)
            seal = BlobMetadata.of(value["seal"])
            source, mtime_ns, facts = str(value["source"]), int(value["mtime_ns"]), dict(value["facts"])
        except (ValueError, KeyError, TypeError, InvalidDigest):
            return None
        if not _are_facts(facts) or not isinstance(key.recipe.get("dialects", []), list):
            return None
        if seal is None or os.path.basename(path) != key.name + _IMAGE:
            return None
        return cls(path, key, source, seal, mtime_ns, facts, last_used)


class ImageStore:
    """The finished images of a cache.

    Args:
        files: of the cache.

    Raises:
        CacheError: from every method, where the filesystem refuses.
    """

    def __init__(self, files: CacheFiles) -> None:
        self._files = files

    def find(self, key: ImageKey, is_stopped: Callable[[], bool] = lambda: False) -> FinishedImage | None:
        """Finds a finished image that can be relied on, and notes that it was used; None for a miss.

        One that was sealed under another boot and not synced, or that has another time of modification than when it
        was sealed, is read and hashed first. A damaged one is taken out of the cache, and a miss.

        Args:
            key: of the image.
            is_stopped: asked now and then whether to give up; the answer is a miss then.
        """
        path = self._path(key)
        state = self._files.lookup(path)
        if state is None:
            return None
        with local_errors():
            image = self._read(path) if stat.S_ISREG(state.st_mode) else None
            if image is not None and state.st_size == image.size and self._is_from(key.maker, path, state):
                is_known = image.seal.is_fresh and state.st_mtime_ns == image.mtime_ns
                if not is_known:
                    image = self._verified(image, is_stopped)
                    if is_stopped():
                        return None
                if image is not None:
                    self._files.touch(path + _SEAL)
                    return image
        self.quarantine(key)
        return None

    def lock(self, key: ImageKey) -> FileLock:
        """The lock that whoever makes or removes an image holds."""
        return self._files.lock(f"image-{key.name}")

    @contextlib.contextmanager
    def drafting(self, key: ImageKey) -> Iterator[str]:
        """Give the path where an image is to be made by who holds its lock: it leads through an open folder."""
        with local_errors(), self._files.at(self._path(key), create=True) as (folder, _):
            if key.maker is not None and folder.state().st_uid != key.maker:
                raise CacheError(folder.path, "this folder of finished images does not belong to its user", errno.EPERM)
            yield f"/proc/self/fd/{folder.fd}/{_draft(key)}"

    def publish(self, key: ImageKey, source: str, facts: Mapping[str, Any], sync: bool) -> FinishedImage:
        """Gives a draft its name; to be called by who holds its lock.

        Args:
            key: of the image.
            source: that it was made from.
            facts: of its making, as JSON has them.
            sync: wait until file and names are on the disk.
        """
        path, draft = self._path(key), _draft(key)
        with local_errors(), self._files.at(path) as (folder, name):
            fd = folder.open(draft)
            try:
                fingerprint = _fingerprint(fd, os.fstat(fd).st_size)
                os.fchmod(fd, self._files.file_mode)
                if sync:
                    os.fsync(fd)
                state = os.fstat(fd)
            finally:
                os.close(fd)
            seal = BlobMetadata.now(state.st_size, fingerprint, sync)
            image = FinishedImage(path, key, source, seal, state.st_mtime_ns, facts, time.time())
            self._files.write(path + _SEAL, image.to_bytes(), sync, self._files.note_mode)
            folder.publish(draft, folder, name)
            if sync:
                folder.sync()
        return image

    def all(self) -> Iterator[FinishedImage]:
        """Lists the finished images; what is damaged at a glance is passed over."""
        for path in self._paths():
            image = self._read(path)
            if image is not None:
                yield image

    def verify(self) -> Iterator[tuple[str, int, bool]]:
        """Reads and hashes everything: of each file path and size, and whether it is what it was when it was sealed."""
        for path in self._paths():
            with local_errors():
                image = self._read(path)
                sound = image is not None and self._verified(image, renew=False) is not None
            state = self._files.lookup(path)
            if state is not None:  # not gone meanwhile
                yield path, state.st_size, sound

    def quarantine(self, key: ImageKey) -> None:
        """Takes a file that is not what its name says out of the way, to ``trash``, with its seal."""
        self.discard(self._path(key), "corrupt")

    def discard(self, path: str, why: str) -> bool:
        """Takes a file out of the cache by its path; says whether it was there. Whoever has it open can read on."""
        if not self._files.discard(path, why):
            return False
        self._files.unlink(path + _SEAL)
        return True

    def remove_leftovers(self, older_than_seconds: float) -> None:
        """Removes seals without an image, which a process leaves that is killed just before it publishes."""
        latest = time.time() - older_than_seconds
        for algorithm, name, state in self._files.listed("images"):
            seal = os.path.join(self._folder(algorithm), name)
            if name.endswith(_SEAL) and state.st_mtime < latest and not self._files.lookup(seal.removesuffix(_SEAL)):
                self._files.unlink(seal)

    def _paths(self) -> Iterator[str]:
        for algorithm, name, state in self._files.listed("images"):
            if name.endswith(_IMAGE) and stat.S_ISREG(state.st_mode):
                yield os.path.join(self._folder(algorithm), name)

    def _folder(self, algorithm: str) -> str:
        return os.path.join(self._files.root, "images", algorithm)

    def _path(self, key: ImageKey) -> str:
        folder = self._folder(key.manifest.algorithm)
        if key.maker is not None:
            folder = self._folder(user_folder_name(key.maker))
        return os.path.join(folder, key.name + _IMAGE)

    def _read(self, path: str) -> FinishedImage | None:
        found = self._files.read_with_state(path + _SEAL)
        return None if found is None else FinishedImage.from_bytes(found[0], path, found[1].st_mtime)

    def _is_from(self, maker: int | None, path: str, state: os.stat_result) -> bool:
        """Whether both file and seal belong to a user who may have made them."""
        seal = self._files.lookup(path + _SEAL)
        owners = {state.st_uid, -1 if seal is None else seal.st_uid}
        if maker is not None:
            return owners == {maker}
        return self._files.is_shared or all(map(self._files.access.trusts, owners))

    def _verified(
        self, image: FinishedImage, is_stopped: Callable[[], bool] = lambda: False, *, renew: bool = True
    ) -> FinishedImage | None:
        """The image, read, hashed and sealed anew; None if it is damaged or gone."""
        try:
            fd = self._files.open(image.path)
        except NotAFile:
            return None
        if fd is None:
            return None
        try:
            state = os.fstat(fd)
            if state.st_size != image.size or _fingerprint(fd, image.size, is_stopped) != image.seal.fingerprint:
                return None
        finally:
            os.close(fd)
        if renew:
            # what outlived the boot under which it was sealed has reached its disk
            seal = BlobMetadata.now(image.size, image.seal.fingerprint, image.seal.synced or not image.seal.is_fresh)
            image = replace(image, seal=seal, mtime_ns=state.st_mtime_ns)
            with contextlib.suppress(OSError):  # another user's
                self._files.write(image.path + _SEAL, image.to_bytes(), mode=self._files.note_mode)
        return image


def open_image(path: str) -> int | None:
    """Open the file of a finished image for reading, through the folders of its cache; None where it is gone.

    Raises:
        OSError: the system refuses, or what is there is no file.
    """
    root, version, images, folder, name = path.rsplit("/", 4)
    try:
        with contextlib.ExitStack() as stack:
            opened = stack.enter_context(CacheFolder.at(root))
            for inner in (version, images, folder):
                opened = stack.enter_context(opened.inner(inner))
            return opened.open(name)
    except (FileNotFoundError, NotAFile):
        return None


def _are_facts(facts: Mapping[str, Any]) -> bool:
    """Whether facts are those of a report: numbers, but for the names of `_FACTS`."""
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
    """Hash a file, of one that grows no more than ``limit`` bytes."""
    hasher, buffer, at = xxhash.xxh3_64(), bytearray(_READ_SIZE), 0
    view = memoryview(buffer)
    while at < limit and (size := os.preadv(fd, [view[: limit - at]], at)) and not is_stopped():
        hasher.update(view[:size])
        at += size
    return hasher.hexdigest()
