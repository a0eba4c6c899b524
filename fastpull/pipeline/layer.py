"""The work on one layer: everything that happens to its bytes, on one thread, in one pass."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastpull.concurrency.serial_executor import SerialExecutor
from fastpull.errors import DecompressError, DiffIdMismatch, LayerError, TarError
from fastpull.layers.decompress import inflate
from fastpull.layers.quota import LayerQuota
from fastpull.layers.windows import InflaterWindow
from fastpull.native import PayloadWriter
from fastpull.native.layer_scanner import LayerScanner
from fastpull.oci.digest import Digest
from fastpull.sources.base import BlobReader
from fastpull.telemetry.timing import clock
from fastpull.telemetry.trace import Stage

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fastpull.config.limits import Limits
    from fastpull.layers.index import LayerIndex
    from fastpull.layers.quota import Quota
    from fastpull.layers.windows import WindowMemory
    from fastpull.oci.image import Layer
    from fastpull.sinks.base import Sink
    from fastpull.sources.base import Blob
    from fastpull.telemetry.timing import LayerTimer, TimingScope

CHUNK = 256 << 10
"""Uncompressed bytes that are hashed, scanned and written at a time, while they are in the processor's cache."""

_BATCH = 2  # chunks that are hashed aside at a time: handing over costs some 50 µs, hashing two chunks 280
_DEPTH = 4  # such batches that may wait


class LayerPipeline:
    """A layer on its way through the stages, on a thread of its own; with cores to spare, another one hashes.

    Args:
        layer: which.
        number: of the layer in its image, 0 for the base.
        subject: the layer's name in messages.
        helpers: threads for what need not be done in the layer's own; None if it does all.
        windows: memory for large windows of the inflater.
        part: counts where the time goes.

    Attributes:
        read: bytes of the blob so far; other threads may look.
        unpacked: uncompressed bytes so far; likewise.
        fingerprint: of the blob, once it is verified.
    """

    def __init__(
        self,
        layer: Layer,
        number: int,
        subject: str,
        helpers: Executor | None,
        windows: WindowMemory,
        part: TimingScope,
    ) -> None:
        self.layer = layer
        self.number = number
        self.subject = subject
        self._helpers = helpers
        self._window = InflaterWindow(windows)
        self._part = part
        self.read = 0
        self.unpacked = 0
        self.fingerprint = ""

    def abort(self, blob: Blob) -> None:
        """Makes work that is under way on another thread end soon, with an error."""
        self._window.abort()
        blob.abort()

    def verify(self, blob: Blob) -> None:
        """Reads the blob to its end, and checks it; one that the cache vouches for is left alone.

        Raises:
            SizeMismatch, DigestMismatch: it is not what its descriptor says.
        """
        if not blob.is_trusted:
            with self._part.watch() as watch:
                self._verify(BlobReader(blob, self.layer.blob, self.subject, watch))

    def unpack(self, blob: Blob, sink: Sink, rank: int, wanted: bytearray | None, quota: Quota) -> LayerIndex:
        """Reads, hashes, inflates, hashes, scans and writes the layer.

        Args:
            blob: of the layer; may still be coming.
            sink: gets the payload.
            rank: of the layer by the size of its blob, 0 for the largest.
            wanted: for each entry whether it will be needed, where that is known.
            quota: of the image.

        Returns:
            The index; blob and diff_id are verified then.

        Raises:
            FastpullError: something is wrong with the blob, the layer, or the output. That a blob is not what its
                descriptor says goes before all that follows from it, but for `LimitExceeded`: then nothing more is
                read.
        """
        try:
            with self._part.watch(hashes=self._helpers is None) as watch:
                return self._unpack(blob, sink, rank, wanted, quota, watch)
        finally:
            self._window.release()

    def _unpack(
        self, blob: Blob, sink: Sink, rank: int, wanted: bytearray | None, quota: Quota, watch: LayerTimer
    ) -> LayerIndex:
        reader = BlobReader(blob, self.layer.blob, self.subject, watch)
        scanner, taken = LayerScanner(self.subject, quota.limits), LayerQuota(quota, self.number, self.subject)
        writer = sink.layer(self.number, rank, scanner.entries, wanted)
        try:
            stream = inflate(reader, self.subject, quota.limits, self._window.grow)
            has_own_id = not stream.is_plain or self.layer.diff_id.algorithm != self.layer.blob.digest.algorithm
            hasher = _Hasher(self.layer.diff_id, self._helpers, self._part) if has_own_id else None
            while chunk := stream.read(CHUNK):
                inflated = clock()
                if hasher is not None:
                    hasher.update(chunk)
                handed = clock()
                spans = scanner.feed(chunk)
                self.read = reader.position
                self.unpacked += len(chunk)
                taken.check(self.read, self.unpacked, scanner.content, scanner.entries)
                writer.write(chunk, spans)
                watch.step(inflated, handed, clock())
            inflated = clock()
            scanner.finish()
            writer.finish()
            watch.step(inflated, inflated, clock())
        except (DecompressError, TarError, LayerError):
            self._verify(reader)
            raise
        finally:
            writer.close()
        self._verify(reader)
        verified = clock()
        diff_id = self.layer.blob.digest if hasher is None else hasher.digest()
        hashed = clock()
        watch.step(verified, hashed, hashed)
        if diff_id != self.layer.diff_id:
            raise DiffIdMismatch(self.subject, str(self.layer.diff_id), str(diff_id))
        return scanner.index(self.layer.blob.digest, diff_id, self.unpacked)

    def extract(self, blob: Blob, number: int, size: int, limits: Limits) -> bytes:
        """Reads a small file of a layer that was unpacked before.

        Args:
            blob: of the layer.
            number: of the file's entry.
            size: of the file, in bytes.
            limits: of the image.
        """
        wanted = bytearray(number + 1)
        wanted[number] = 1
        fd = os.memfd_create("fastpull-file", os.MFD_CLOEXEC)
        try:
            with self._part.watch() as watch:
                reader = BlobReader(blob, self.layer.blob, self.subject, watch)
                scanner = LayerScanner(self.subject, limits)
                writer = PayloadWriter(scanner.entries, fd, wanted)
                stream = inflate(reader, self.subject, limits, self._window.grow)
                while len(scanner.entries) <= number + 1 and (chunk := stream.read(CHUNK)):
                    code = writer.write(chunk, scanner.feed(chunk))
                    if code:
                        raise OSError(code, os.strerror(code))
            start = memoryview(writer.starts_bytes()).cast("q")[number]
            return os.pread(fd, size, start)
        finally:
            self._window.release()
            os.close(fd)

    def _verify(self, reader: BlobReader) -> None:
        while reader.read(reader.chunk_size):
            self.read = reader.position
        self.fingerprint = reader.verify()
        self.read = reader.position


class _Hasher:
    """Hashes what is inflated: on another thread, so that the layer's own, the longest path of a pull, goes on.

    Args:
        expected: a digest of the algorithm that is to be used.
        executor: whose thread; None for the caller's own.
        part: counts where the other thread's time goes.
    """

    def __init__(self, expected: Digest, executor: Executor | None, part: TimingScope) -> None:
        self._hasher = expected.hasher()
        self._strand = SerialExecutor(executor, _DEPTH) if executor else None
        self._part = part
        self._chunks: list[bytes] = []

    def update(self, chunk: bytes) -> None:
        """Takes the next bytes; blocks while too many wait."""
        if self._strand is None:
            self._hasher.update(chunk)
            return
        self._chunks.append(chunk)
        if len(self._chunks) >= _BATCH:
            self._strand.submit(self._hash, self._chunks)
            self._chunks = []

    def digest(self) -> Digest:
        """Of all that it got."""
        if self._strand is not None:
            self._strand.submit(self._hash, self._chunks)
            self._strand.finish()
        return Digest.sealed(self._hasher)

    def _hash(self, chunks: list[bytes]) -> None:
        with self._part.at(Stage.HASH):
            for chunk in chunks:
                self._hasher.update(chunk)
