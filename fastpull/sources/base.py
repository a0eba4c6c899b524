"""The protocols of sources and blobs, and the verified reading of a blob."""

from __future__ import annotations

import io
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

import xxhash

from fastpull.errors import DigestMismatch, SizeMismatch
from fastpull.oci.digest import Digest
from fastpull.telemetry.timing import clock

if TYPE_CHECKING:
    from fastpull.config.policy import Identity
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.image import Image
    from fastpull.oci.platform import Platform
    from fastpull.telemetry.timing import LayerTimer, TimingScope


class Blob(Protocol):
    """The bytes of one descriptor, readable from the front, possibly during the download.

    Attributes:
        is_fresh: every byte comes from the source now, so corrupt bytes are the fault of the source and not of the
            cache. After `reject`, whether no other endpoint is left.
        is_cached: all bytes were present at the start.
        is_remote: transmission may corrupt the bytes, so another attempt may succeed.
        is_trusted: the cache vouches for the bytes without a new verification; sufficient for leaving them in place,
            and for output that is compared with fingerprints of an earlier verification.
    """

    is_fresh: bool
    is_cached: bool
    is_remote: bool
    is_trusted: bool

    @property
    def present(self) -> int:
        """Number of bytes present on this machine, in any ranges."""

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """Read bytes at ``offset``; block until there is at least one. Return 0 at the end.

        Raises:
            FastpullError: the remaining bytes will not come.
        """

    def abort(self) -> None:
        """Wake a blocked reader with an error."""

    async def accept(self, fingerprint: str) -> None:
        """Confirm that the blob was read completely and its digest matches. A blob new to the cache is published.

        Args:
            fingerprint: XXH3-64 of the blob, in hexadecimal.
        """

    async def reject(self) -> None:
        """Report that the bytes are corrupt. They are removed from the cache."""


class Source(Protocol):
    """A registry, a layout or an archive.

    Attributes:
        identity: identity of the image for policies.
    """

    @property
    def identity(self) -> Identity:
        """Identity of the image for policies."""

    async def resolve(self, platform: Platform) -> Image:
        """Resolve the image for a platform.

        Raises:
            NotFound, NoMatchingPlatform, AccessDenied, UnsupportedMediaType, MalformedDocument, DigestMismatch.
        """

    def open_blob(
        self, descriptor: Descriptor, priority: int, timing: TimingScope
    ) -> AbstractAsyncContextManager[Blob]:
        """Open a blob, and start its download.

        Args:
            descriptor: descriptor of the blob.
            priority: priority among several blobs; the lowest number comes first.
            timing: receives the timing.
        """


class BlobReader(io.RawIOBase):
    """A raw stream that reads a blob from front to back, and hashes every byte.

    Args:
        blob: blob to read.
        descriptor: expected descriptor.
        subject: name of the blob, for messages.
        watch: timer of the reading thread.

    Attributes:
        position: number of bytes read.
    """

    chunk_size = 128 << 10
    """Largest number of bytes per read, so that hashing and inflating find them in the processor's cache."""

    def __init__(self, blob: Blob, descriptor: Descriptor, subject: str, watch: LayerTimer) -> None:
        self._blob = blob
        self._subject = subject
        self._watch = watch
        self._descriptor = descriptor
        self._hasher = descriptor.digest.hasher()
        self._fingerprint = xxhash.xxh3_64()
        self.position = 0

    def readable(self) -> bool:
        """Return True, as a raw stream that can be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # every caller passes a memoryview
        """Read the next bytes; block until there are some."""
        start, got = clock(), None
        try:
            size = self._blob.readinto(memoryview(buffer)[: self.chunk_size], self.position)
            got = clock()
            if size:
                read = memoryview(buffer)[:size]
                self._hasher.update(read)
                self._fingerprint.update(read)
                self.position += size
        finally:
            stop = clock()
            self._watch.read(start, got or stop, stop, may_wait=not self._blob.is_cached)
        return size

    def verify(self) -> str:
        """Read the rest, and check size and digest.

        Returns:
            The XXH3-64 fingerprint of the blob, in hexadecimal.

        Raises:
            SizeMismatch, DigestMismatch: the blob does not match its descriptor.
        """
        buffer = memoryview(bytearray(self.chunk_size))
        while self.readinto(buffer):
            pass
        expected = self._descriptor
        if self.position != expected.size:
            raise SizeMismatch(self._subject, expected.size, self.position)
        actual = Digest.sealed(self._hasher)
        if actual != expected.digest:
            raise DigestMismatch(self._subject, str(expected.digest), str(actual))
        return self._fingerprint.hexdigest()
