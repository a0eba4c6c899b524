"""What every source can do, and the verified reading of what it gives."""

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
    """The bytes of one descriptor, readable from the front, perhaps while they still come.

    Attributes:
        is_fresh: every byte comes from the source now, so that a wrong one is the source's fault and not the cache's.
            Once it is rejected, this says whether there is no other place to get it from.
        is_cached: the bytes were there already.
        is_remote: what comes may be spoiled on its way, and another time not.
        is_trusted: the cache vouches for the bytes without another look; only good for leaving them where they are.
    """

    is_fresh: bool
    is_cached: bool
    is_remote: bool
    is_trusted: bool

    @property
    def present(self) -> int:
        """Bytes that are on this machine already, in whatever places."""

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """Reads from ``offset``; blocks until a byte is there. Nothing at the end.

        Raises:
            FastpullError: the rest will not come.
        """

    def abort(self) -> None:
        """Wakes a reader that is blocked; it gets an error."""

    async def accept(self, fingerprint: str) -> None:
        """Says that the whole was read and its digest is right: a blob that is new to the cache is published.

        Args:
            fingerprint: XXH3-64 of the whole, in hexadecimal.
        """

    async def reject(self) -> None:
        """Says that the bytes are wrong: they are removed from the cache."""


class Source(Protocol):
    """A registry, a layout, an archive.

    Attributes:
        identity: what a policy knows the image by.
    """

    @property
    def identity(self) -> Identity:
        """See above."""

    async def resolve(self, platform: Platform) -> Image:
        """Finds the image for a platform.

        Raises:
            NotFound, NoMatchingPlatform, AccessDenied, UnsupportedMediaType, MalformedDocument, DigestMismatch.
        """

    def open_blob(self, descriptor: Descriptor, rank: int, part: TimingScope) -> AbstractAsyncContextManager[Blob]:
        """Opens a blob; it begins to come at once.

        Args:
            descriptor: of the blob.
            rank: of several blobs at once the lowest comes first.
            part: counts where the time goes.
        """


class BlobReader(io.RawIOBase):
    """Reads a blob from front to back, and hashes every byte on its way.

    Args:
        blob: to be read.
        descriptor: what it should be.
        subject: what it is, for messages.
        watch: of the thread that reads.

    Attributes:
        position: how many bytes were read.
    """

    chunk_size = 128 << 10
    """At most so much at a time: it is hashed, and then inflated, while it is in the processor's cache."""

    def __init__(self, blob: Blob, descriptor: Descriptor, subject: str, watch: LayerTimer) -> None:
        self._blob = blob
        self._subject = subject
        self._watch = watch
        self._descriptor = descriptor
        self._hasher = descriptor.digest.hasher()
        self._fingerprint = xxhash.xxh3_64()
        self.position = 0

    def readable(self) -> bool:
        """As every raw stream says."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what every caller passes
        """Reads the next bytes; blocks until there are some."""
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
        """Reads what is left, and checks size and digest.

        Returns:
            The XXH3-64 fingerprint of the blob, in hexadecimal.

        Raises:
            SizeMismatch, DigestMismatch: it is not what the descriptor says.
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
