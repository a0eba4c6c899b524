"""Finished images: squashfs files that need not be made again.

::

    <root>/v1/images/<algorithm>/<manifest>.<recipe>.sqsh          the file, read-only
    <root>/v1/images/<algorithm>/<manifest>.<recipe>.sqsh.seal     what it is, and what was verified

``<manifest>`` is the hexadecimal digest of the image's manifest, ``<recipe>`` a hash of the platform and of all else
that decides on the bytes. No digest tells whether a file is what its name says: whoever made it has to be trusted. So
in a cache that others may write to, users have files of their own, unless they say that they trust those others.

Whoever makes one holds its lock. Readers take none; while somebody holds the lock a file may be about to go, so that
who wants it waits. Every method blocks.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import xxhash

from fastpull.cache import line
from fastpull.cache.files import local_errors, sync_folder
from fastpull.cache.seal import Seal
from fastpull.errors import InvalidDigest
from fastpull.oci.digest import Digest

if TYPE_CHECKING:
    from fastpull.cache.files import Files
    from fastpull.cache.locks import FileLock

_IMAGE = ".sqsh"
_SEAL = ".seal"
_DRAFT = ".draft"
_READ_SIZE = 1 << 20


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
    seal: Seal
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
        return line.to_bytes(value)

    @classmethod
    def from_bytes(cls, content: bytes, path: str, last_used: float) -> FinishedImage | None:
        """Reads what stands beside a file; None for anything that is not as it was written."""
        try:
            value = line.from_bytes(content)
            maker = None if value["maker"] is None else int(value["maker"])
            key = ImageKey(Digest.parse(value["manifest"]), str(value["platform"]), dict(value["recipe"]), maker)
            seal = Seal.of(value["seal"])
            source, mtime_ns, facts = str(value["source"]), int(value["mtime_ns"]), dict(value["facts"])
        except (ValueError, KeyError, TypeError, InvalidDigest):
            return None
        if seal is None or os.path.basename(path) != key.name + _IMAGE:
            return None
        return cls(path, key, source, seal, mtime_ns, facts, last_used)


class Images:
    """The finished images of a cache.

    Args:
        files: of the cache.

    Raises:
        CacheError: from every method, where the filesystem refuses.
    """

    def __init__(self, files: Files) -> None:
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
        with local_errors():
            try:
                state = os.stat(path, follow_symlinks=False)
            except FileNotFoundError:
                return None
            image = self._read(path)
            if image is not None and state.st_size == image.size and self._is_from(key.maker, path, state):
                is_known = image.seal.is_fresh and state.st_mtime_ns == image.mtime_ns
                if not is_known:
                    image = self._verified(image, is_stopped)
                    if is_stopped():
                        return None
                if image is not None:
                    with contextlib.suppress(OSError):  # another user's, in a cache that is not for both to write to
                        os.utime(path + _SEAL)
                    return image
        self.quarantine(key)
        return None

    def lock(self, key: ImageKey) -> FileLock:
        """The lock that whoever makes or removes an image holds."""
        return self._files.lock(f"image-{key.name}")

    def draft(self, key: ImageKey) -> str:
        """Where an image is to be made by who holds its lock."""
        return os.path.join(self._folder(key.manifest.algorithm), f".{key.name}{_DRAFT}")

    def publish(self, key: ImageKey, source: str, facts: Mapping[str, Any], sync: bool) -> FinishedImage:
        """Gives a draft its name; to be called by who holds its lock.

        Args:
            key: of the image.
            source: that it was made from.
            facts: of its making, as JSON has them.
            sync: wait until file and names are on the disk.
        """
        draft, path = self.draft(key), self._path(key)
        with local_errors():
            fd = os.open(draft, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fingerprint = _fingerprint(fd)
                os.fchmod(fd, self._files.file_mode)
                if sync:
                    os.fsync(fd)
                state = os.fstat(fd)
            finally:
                os.close(fd)
            seal = Seal.now(state.st_size, fingerprint, sync)
            image = FinishedImage(path, key, source, seal, state.st_mtime_ns, facts, time.time())
            self._files.write(path + _SEAL, image.to_bytes(), sync, self._files.note_mode)
            os.rename(draft, path)
            if sync:
                sync_folder(os.path.dirname(path))
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
                with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                    yield path, os.stat(path, follow_symlinks=False).st_size, sound

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
            if name.endswith(_SEAL) and state.st_mtime < latest and not os.path.lexists(seal.removesuffix(_SEAL)):
                self._files.unlink(seal)

    def _paths(self) -> Iterator[str]:
        for algorithm, name, _ in self._files.listed("images"):
            if name.endswith(_IMAGE):
                yield os.path.join(self._folder(algorithm), name)

    def _folder(self, algorithm: str) -> str:
        return os.path.join(self._files.root, "images", algorithm)

    def _path(self, key: ImageKey) -> str:
        return os.path.join(self._folder(key.manifest.algorithm), key.name + _IMAGE)

    def _read(self, path: str) -> FinishedImage | None:
        try:
            with open(path + _SEAL, "rb") as file:
                return FinishedImage.from_bytes(file.read(), path, os.fstat(file.fileno()).st_mtime)
        except FileNotFoundError:
            return None

    def _is_from(self, maker: int | None, path: str, state: os.stat_result) -> bool:
        """Whether both file and seal belong to the only user who may have made them."""
        return maker is None or {state.st_uid, os.stat(path + _SEAL, follow_symlinks=False).st_uid} == {maker}

    def _verified(
        self, image: FinishedImage, is_stopped: Callable[[], bool] = lambda: False, *, renew: bool = True
    ) -> FinishedImage | None:
        """The image, read, hashed and sealed anew; None if it is damaged or gone."""
        try:
            fd = os.open(image.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            state = os.fstat(fd)
            if state.st_size != image.size or _fingerprint(fd, is_stopped) != image.seal.fingerprint:
                return None
        finally:
            os.close(fd)
        if renew:
            # what outlived the boot under which it was sealed has reached its disk
            seal = Seal.now(image.size, image.seal.fingerprint, image.seal.synced or not image.seal.is_fresh)
            image = replace(image, seal=seal, mtime_ns=state.st_mtime_ns)
            with contextlib.suppress(OSError):  # another user's
                self._files.write(image.path + _SEAL, image.to_bytes(), mode=self._files.note_mode)
        return image


def _fingerprint(fd: int, is_stopped: Callable[[], bool] = lambda: False) -> str:
    hasher, buffer, at = xxhash.xxh3_64(), bytearray(_READ_SIZE), 0
    view = memoryview(buffer)
    while (size := os.preadv(fd, [buffer], at)) and not is_stopped():
        hasher.update(view[:size])
        at += size
    return hasher.hexdigest()
