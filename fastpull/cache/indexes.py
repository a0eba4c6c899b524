"""Indexes of layers, as the cache keeps them: by the digest of the blob, with a fingerprint behind each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import xxhash

from fastpull.cache.files import digest_of

if TYPE_CHECKING:
    from fastpull.cache.files import CacheFiles
    from fastpull.oci.digest import Digest

_FINGERPRINT_SIZE = 8
_MAX_SIZE = 512 << 20  # four million entries with paths of 60 bytes


class Indexes:
    """The indexes in a cache. They only save work, so whatever is wrong with one is a miss.

    Args:
        files: of the cache.

    Raises:
        CacheError: from every method, where the filesystem refuses.
    """

    def __init__(self, files: CacheFiles) -> None:
        self._files = files

    def read(self, digest: Digest) -> bytes | None:
        """What `write` kept for a layer; None for a miss. A damaged one is removed, and a miss."""
        content = self._files.read(self._path(digest), _MAX_SIZE)
        if content is None:
            return None
        if not _is_sound(content):
            self.remove(digest)
            return None
        return content[:-_FINGERPRINT_SIZE]

    def write(self, digest: Digest, index: bytes) -> None:
        """Keeps the index of a layer whose blob and diff_id were verified."""
        self._files.write(self._path(digest), index + xxhash.xxh3_64_digest(index))

    def is_damaged(self, digest: Digest) -> bool:
        """Whether an index is not what `write` kept."""
        content = self._files.read(self._path(digest), _MAX_SIZE)
        return content is not None and not _is_sound(content)

    def remove(self, digest: Digest) -> None:
        """Forgets the index of a layer."""
        self._files.unlink(self._path(digest))

    def __iter__(self) -> Iterator[Digest]:
        """The blobs of the layers whose index is kept."""
        for algorithm, name, _ in self._files.entries("index"):
            if digest := digest_of(algorithm, name):
                yield digest

    def _path(self, digest: Digest) -> str:
        return self._files.path("index", digest)


def _is_sound(content: bytes) -> bool:
    return xxhash.xxh3_64_digest(content[:-_FINGERPRINT_SIZE]) == content[-_FINGERPRINT_SIZE:]
