"""Cached tables about layers, by the digest of the blob, each with a trailing fingerprint: indexes and checkpoints."""

from __future__ import annotations

import os
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
    """The layer indexes in a cache. They only save work, so a damaged index counts as a miss.

    Args:
        files: files of the cache.

    Raises:
        CacheError: from every method; the filesystem refuses.
    """

    def __init__(self, files: CacheFiles) -> None:
        self._files = files

    def read(self, digest: Digest) -> bytes | None:
        """Return the table of a layer; None for a miss. A damaged table is removed."""
        content = self._files.read(self._path(digest), _MAX_SIZE)
        if content is None:
            return None
        if not _is_sound(content):
            self.remove(digest)
            return None
        return content[:-_FINGERPRINT_SIZE]

    def write(self, digest: Digest, table: bytes) -> None:
        """Store the table of a layer whose blob and diff_id are verified."""
        self._files.write(self._path(digest), table + xxhash.xxh3_64_digest(table))

    def is_damaged(self, digest: Digest) -> bool:
        """Return whether a table differs from what was written."""
        content = self._files.read(self._path(digest), _MAX_SIZE)
        return content is not None and not _is_sound(content)

    def remove(self, digest: Digest) -> None:
        """Remove the table of a layer."""
        self._files.unlink(self._path(digest))

    def __iter__(self) -> Iterator[Digest]:
        """Iterate over the digests of the blobs that have a table."""
        for algorithm, name, _ in self._files.entries("index"):
            if digest := digest_of(algorithm, name):
                yield digest

    def _path(self, digest: Digest) -> str:
        return self._files.path("index", digest)


class CheckpointTables(Indexes):
    """The checkpoints of gzip blobs in a cache.

    A table stands in for the verification of the diff_id, so it counts because of its author: in a shared cache each
    user has a directory of tables.
    """

    def __iter__(self) -> Iterator[Digest]:
        """Iterate over the digests of the blobs that have a table of this user."""
        names = os.path.relpath(self._files.user_directory("checkpoints"), self._files.root).split(os.sep)
        for name in self._files.names(*names):
            if digest := digest_of(*name.partition("-")[::2]):
                yield digest

    def _path(self, digest: Digest) -> str:
        name = f"{digest.algorithm}-{digest.encoded}"
        return os.path.join(self._files.user_directory("checkpoints"), name)


def _is_sound(content: bytes) -> bool:
    return xxhash.xxh3_64_digest(content[:-_FINGERPRINT_SIZE]) == content[-_FINGERPRINT_SIZE:]
