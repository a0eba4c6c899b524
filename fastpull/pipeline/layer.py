"""The pipeline of one layer: all stages from blob to sink, on one thread, in one pass."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Protocol

from fastpull.concurrency.serial_executor import SerialExecutor
from fastpull.errors import DecompressError, DiffIdMismatch, LayerError, LimitExceeded, TarError
from fastpull.layers.decompress import HAS_ISAL, inflate
from fastpull.layers.quota import LayerQuota
from fastpull.layers.windows import InflaterWindow
from fastpull.native import PayloadWriter
from fastpull.native.layer_scanner import LayerScanner
from fastpull.oci.digest import Digest
from fastpull.sources.base import BlobReader
from fastpull.telemetry.timing import clock
from fastpull.telemetry.trace import Stage

if HAS_ISAL:
    from fastpull.pipeline.checkpoints import SPACING, CheckpointRecorder, Checkpoints
    from fastpull.pipeline.parallel import CheckpointsDamaged, ParallelInflater

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fastpull.config.limits import Limits
    from fastpull.layers.decompress import Inflated
    from fastpull.layers.index import LayerIndex
    from fastpull.layers.quota import Quota
    from fastpull.oci.image import Layer
    from fastpull.pipeline.context import PullContext
    from fastpull.sinks.base import Sink
    from fastpull.sources.base import Blob
    from fastpull.telemetry.timing import LayerTimer, TimingScope

CHUNK = 256 << 10
"""Uncompressed bytes that are hashed, scanned and written at once, while they are in the processor's cache."""

PIECES_AHEAD = 3
"""Pieces of a layer that are inflated before they are read, at most: one thread writes what four inflate."""

_MIN_RECORDED = 4 << 20  # bytes of a blob: a smaller one has hardly two pieces
_BATCH = 2  # chunks per call to the hashing thread: a call costs about 50 µs, hashing two chunks 280 µs
_DEPTH = 4  # batches that may wait


class LayerPipeline:
    """The stages of one layer, on one thread; with spare cores, other threads hash, or inflate known pieces ahead.

    Args:
        layer: the layer.
        number: number of the layer in its image; 0 is the base.
        subject: name of the layer in messages.
        context: resources shared with other pulls.
        scope: measures the stages.

    Attributes:
        read: bytes of the blob read so far; may be read from other threads.
        unpacked: uncompressed bytes so far; may be read from other threads.
        fingerprint: fingerprint of the blob; empty until it is verified.
    """

    def __init__(
        self,
        layer: Layer,
        number: int,
        subject: str,
        context: PullContext,
        scope: TimingScope,
    ) -> None:
        self.layer = layer
        self.number = number
        self.subject = subject
        self._context = context
        self._window = InflaterWindow(context.windows)
        self._scope = scope
        self.read = 0
        self.unpacked = 0
        self.fingerprint = ""

    def abort(self, blob: Blob) -> None:
        """Make work on another thread end soon, with an error."""
        self._window.abort()
        blob.abort()

    def verify(self, blob: Blob) -> None:
        """Verify the whole blob, unless the cache has verified it already.

        Raises:
            SizeMismatch, DigestMismatch: the blob does not match its descriptor.
        """
        if not blob.is_trusted:
            with self._scope.layer_timer() as timer:
                self._verify(BlobReader(blob, self.layer.blob, self.subject, timer))

    def unpack(self, blob: Blob, sink: Sink, rank: int, wanted: bytearray | None, quota: Quota) -> LayerIndex:
        """Verify, inflate, scan and write the layer.

        Args:
            blob: blob of the layer; its download may still be running.
            sink: sink for the payload.
            rank: rank of the layer by the size of its blob; 0 is the largest.
            wanted: for each entry whether the tree needs it; None if that is unknown.
            quota: quota of the image.

        Returns:
            The index of the layer; blob and diff_id are verified.

        Raises:
            FastpullError: the blob, the layer or the output is at fault. A mismatch of the blob takes precedence over
                errors that follow from it, except for `LimitExceeded`, after which nothing more is read.
        """
        try:
            with self._scope.layer_timer(hashes=not self._context.hashes_aside) as timer:
                checkpoints = self._known_checkpoints(blob)
                if checkpoints is not None:
                    try:
                        return self._unpack_pieces(blob, checkpoints, sink, rank, wanted, quota, timer)
                    except CheckpointsDamaged:
                        self._context.store.checkpoints.remove(self.layer.blob.digest)
                return self._unpack_stream(blob, sink, rank, wanted, quota, timer)
        finally:
            self._window.release()

    def _known_checkpoints(self, blob: Blob) -> Checkpoints | None:
        """Return the checkpoints of a blob whose diff_id this user has verified before."""
        if not HAS_ISAL or not blob.is_trusted:
            return None
        content = self._context.store.checkpoints.read(self.layer.blob.digest)
        try:
            checkpoints = Checkpoints.from_bytes(content) if content else None
        except ValueError:
            return None
        return checkpoints if checkpoints and checkpoints.diff_id == self.layer.diff_id else None

    def _unpack_pieces(
        self,
        blob: Blob,
        checkpoints: Checkpoints,
        sink: Sink,
        rank: int,
        wanted: bytearray | None,
        quota: Quota,
        timer: LayerTimer,
    ) -> LayerIndex:
        """Unpack a verified blob; the fingerprints of its pieces take the place of hashing blob and tar again."""
        context = self._context
        ahead = min(PIECES_AHEAD, context.cores.total, context.windows.total // 4 // SPACING)
        self._window.grow(ahead * SPACING)
        inflating = partial(self._scope.timed, Stage.INFLATE)
        stream = ParallelInflater(checkpoints.pieces, blob.readinto, context.helpers, context.cores, ahead, inflating)
        try:
            scanner = self._write(stream, stream, None, sink, rank, wanted, quota, timer)
        except (TarError, LayerError, LimitExceeded) as error:  # the layer was sound when its pieces were recorded
            raise CheckpointsDamaged from error
        finally:
            stream.close()
        self.read = self.layer.blob.size
        return scanner.index(self.layer.blob.digest, self.layer.diff_id, self.unpacked)

    def _unpack_stream(
        self, blob: Blob, sink: Sink, rank: int, wanted: bytearray | None, quota: Quota, timer: LayerTimer
    ) -> LayerIndex:
        reader = BlobReader(blob, self.layer.blob, self.subject, timer)
        is_recorded = HAS_ISAL and (blob.is_cached or blob.is_remote) and self.layer.blob.size >= _MIN_RECORDED
        recorder = CheckpointRecorder() if is_recorded else None
        try:
            stream = inflate(reader, self.subject, quota.limits, self._window.grow, recorder)
            has_own_id = not stream.is_plain or self.layer.diff_id.algorithm != self.layer.blob.digest.algorithm
            hasher = _Hasher(self.layer.diff_id, self._hashing_threads, self._scope) if has_own_id else None
            scanner = self._write(stream, reader, hasher, sink, rank, wanted, quota, timer)
        except (DecompressError, TarError, LayerError):
            self._verify(reader)
            raise
        self._verify(reader)
        verified = clock()
        diff_id = self.layer.blob.digest if hasher is None else hasher.digest()
        hashed = clock()
        timer.step(verified, hashed, hashed)
        if diff_id != self.layer.diff_id:
            raise DiffIdMismatch(self.subject, str(self.layer.diff_id), str(diff_id))
        if recorder is not None and (checkpoints := recorder.finish(diff_id)):
            self._context.store.checkpoints.write(self.layer.blob.digest, checkpoints.to_bytes())
        return scanner.index(self.layer.blob.digest, diff_id, self.unpacked)

    def _write(
        self,
        stream: Inflated,
        source: _Positioned,
        hasher: _Hasher | None,
        sink: Sink,
        rank: int,
        wanted: bytearray | None,
        quota: Quota,
        timer: LayerTimer,
    ) -> LayerScanner:
        """Hash, scan and write the inflated bytes; return the scanner with all entries."""
        self.unpacked = 0
        scanner, taken = LayerScanner(self.subject, quota.limits), LayerQuota(quota, self.number, self.subject)
        writer = sink.layer(self.number, rank, scanner.entries, wanted)
        try:
            while chunk := stream.read(CHUNK):
                inflated = clock()
                if hasher is not None:
                    hasher.update(chunk)
                handed = clock()
                spans = scanner.feed(chunk)
                self.read = source.position
                self.unpacked += len(chunk)
                taken.check(self.read, self.unpacked, scanner.content, scanner.entries)
                writer.write(chunk, spans)
                timer.step(inflated, handed, clock())
            inflated = clock()
            scanner.finish()
            writer.finish()
            timer.step(inflated, inflated, clock())
        finally:
            writer.close()
        return scanner

    def extract(self, blob: Blob, number: int, size: int, limits: Limits) -> bytes:
        """Return the content of a small file of a layer that was unpacked.

        Args:
            blob: blob of the layer.
            number: number of the file's entry.
            size: size of the file, in bytes.
            limits: limits of the image.
        """
        wanted = bytearray(number + 1)
        wanted[number] = 1
        fd = os.memfd_create("fastpull-file", os.MFD_CLOEXEC)
        try:
            with self._scope.layer_timer() as timer:
                reader = BlobReader(blob, self.layer.blob, self.subject, timer)
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

    @property
    def _hashing_threads(self) -> Executor | None:
        return self._context.helpers if self._context.hashes_aside else None

    def _verify(self, reader: BlobReader) -> None:
        while reader.read(reader.chunk_size):
            self.read = reader.position
        self.fingerprint = reader.verify()
        self.read = reader.position


class _Positioned(Protocol):
    """A reader with the number of bytes of the blob that it has read."""

    position: int


class _Hasher:
    """Hashes inflated chunks, on another thread if there is one: the thread of a layer is the longest path of a pull.

    Args:
        expected: a digest with the algorithm to use.
        executor: threads for hashing; None for the caller's thread.
        scope: measures the hashing thread.
    """

    def __init__(self, expected: Digest, executor: Executor | None, scope: TimingScope) -> None:
        self._hasher = expected.hasher()
        self._serial = SerialExecutor(executor, _DEPTH) if executor else None
        self._scope = scope
        self._chunks: list[bytes] = []

    def update(self, chunk: bytes) -> None:
        """Hash the next chunk; block while too many chunks wait."""
        if self._serial is None:
            self._hasher.update(chunk)
            return
        self._chunks.append(chunk)
        if len(self._chunks) >= _BATCH:
            self._serial.submit(self._hash, self._chunks)
            self._chunks = []

    def digest(self) -> Digest:
        """Return the digest of all chunks."""
        if self._serial is not None:
            self._serial.submit(self._hash, self._chunks)
            self._serial.finish()
        return Digest.sealed(self._hasher)

    def _hash(self, chunks: list[bytes]) -> None:
        with self._scope.timed(Stage.HASH):
            for chunk in chunks:
                self._hasher.update(chunk)
