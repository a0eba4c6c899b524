"""One image on one rank of a job: its blobs, its exchange, and this rank's progress."""

from __future__ import annotations

import asyncio
import resource
import time
from typing import TYPE_CHECKING

from fastpull.cluster.blobs.exchange import Exchange
from fastpull.cluster.blobs.local_blob import LocalBlob
from fastpull.cluster.build.member import BuildMember
from fastpull.cluster.messages import TaskProgress, TaskReport
from fastpull.cluster.transport.frame import FrameKind
from fastpull.cluster.transport.sender import Sender
from fastpull.concurrency.threads import in_thread
from fastpull.errors import CacheError, DigestMismatch, FastpullError
from fastpull.telemetry.events import Event, LayerProgress, Waiting
from fastpull.telemetry.timing import PullTimer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastpull.cluster.blobs.local_blob import RangeTarget
    from fastpull.cluster.build.artifacts import LayerArtifact
    from fastpull.cluster.control.channel import ControlChannel
    from fastpull.cluster.transport.frame import Frame
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.image import Image
    from fastpull.sources.blobs import SourceContext
    from fastpull.sources.registry import RegistrySource


class ImageTask:
    """One rank's work on an image.

    Args:
        number: the number of the image within the job.
        source: the image, as the user named it.
        channel: the control channel of the job.

    Attributes:
        number, source, channel: as above.
        image: the resolved image; None before.
        ranks: the number of ranks that take part; 0 before the image is resolved.
        error: the error that stops this rank's work; None if there is none.
        stopped: set together with the error.
    """

    def __init__(self, number: int, source: str, channel: ControlChannel) -> None:
        self.number = number
        self.source = source
        self.channel = channel
        self.image: Image | None = None
        self.error: FastpullError | None = None
        self.stopped = asyncio.Event()
        self.ranks = 0
        self._descriptors: tuple[Descriptor, ...] = ()
        self._origin: tuple[RegistrySource, SourceContext] | None = None
        self._joining = asyncio.Lock()
        self._blobs: list[LocalBlob] = []
        self._exchange: Exchange | None = None
        self._build_member: BuildMember | None = None
        self._sender: Sender | None = None
        self._began = time.monotonic()
        self._resolve_seconds = self._exchange_seconds = 0.0
        self._unpacked: dict[str, int] = {}

    def resolved(self, image: Image, ranks: int, registry: RegistrySource, context: SourceContext) -> None:
        """Set the resolved image.

        Args:
            image: the image, equal on all ranks.
            ranks: the number of ranks that take part.
            registry: the source that has the image.
            context: the context of the client's sources.
        """
        self.image, self.ranks, self._origin = image, ranks, (registry, context)
        self._descriptors = tuple({layer.blob.digest: layer.blob for layer in image.layers}.values())
        self._resolve_seconds = time.monotonic() - self._began

    @property
    def blob_sizes(self) -> list[int]:
        """The sizes of the image's blobs, in bytes."""
        return [blob.size for blob in self._descriptors]

    @property
    def blob_numbers(self) -> list[int]:
        """The number of the blob of each layer; several layers may have the same blob."""
        numbers = {blob.digest: number for number, blob in enumerate(self._descriptors)}
        return [numbers[layer.blob.digest] for layer in self.image.layers] if self.image is not None else []

    async def build(self, artifacts: Sequence[LayerArtifact]) -> BuildMember | None:
        """Build the artifacts of all layers together with the other ranks.

        Args:
            artifacts: the artifacts of the layers, with files for those that are received; closed at the end.

        Returns:
            This rank's part; None if it is the only rank or takes part already, so that it builds all layers itself.

        Raises:
            CacheError: as from `join`.
        """
        if self.ranks < 2 or self._exchange is not None:
            return None
        await self.join(wants=True, artifacts=artifacts)
        return self._build_member

    async def blob(self, descriptor: Descriptor) -> LocalBlob:
        """Return a blob on this rank. The first call starts the exchange of all blobs."""
        await self.join(wants=True)
        return next(blob for blob in self._blobs if blob.descriptor.digest == descriptor.digest)

    async def join(self, *, wants: bool, artifacts: Sequence[LayerArtifact] | None = None) -> None:
        """Take part in the exchange. Later calls do nothing.

        Args:
            wants: whether this rank needs the blobs that it lacks; otherwise it only serves what it has.
            artifacts: what it needs in place of the blobs; it then gets only the blobs of the layers that it builds.

        Raises:
            CacheError: the blobs cannot be stored, or another process on this node does not finish fetching one.
        """
        async with self._joining:
            if self._exchange is not None or self._origin is None:
                return
            if self.error is not None:
                raise self.error
            registry, context = self._origin
            try:
                for descriptor in self._descriptors:
                    self._blobs.append(LocalBlob(descriptor, None, None))
                    await self._fill(self._blobs[-1], context, wants=wants, must_have=artifacts is None)
            except BaseException:
                for blob in self._blobs:
                    await in_thread(context.executor, blob.close)
                self._blobs = []
                raise
            timer = PullTimer()
            scopes = [timer.layer(number) for number in range(len(self._descriptors))]

            async def fetch(number: int, target: RangeTarget, is_all: bool) -> None:
                await registry.fetch(self._descriptors[number], target, number, scopes[number], is_all=is_all)

            async def allocate(blob: LocalBlob) -> None:
                await self._fill(blob, context, wants=True, must_have=True)

            sender = self._sender = Sender(self.number, self.channel.fabric, context.executor, self.fail)
            shared = self.channel, sender, context.executor
            if artifacts is not None:
                sizes, numbers = self.blob_sizes, self.blob_numbers
                weights = [sizes[blob] if blob not in numbers[:layer] else 0 for layer, blob in enumerate(numbers)]
                self._build_member = BuildMember(self.number, self.source, artifacts, weights, *shared)
            self._exchange = Exchange(
                self.number,
                self._blobs,
                self.ranks,
                *shared,
                self.fail,
                wants=wants,
                build_member=self._build_member,
                allocate=allocate,
                fetch=fetch,
            )

    async def _fill(self, blob: LocalBlob, context: SourceContext, *, wants: bool, must_have: bool) -> None:
        """Find a blob in the cache, or begin it there.

        Args:
            blob: the blob.
            context: the context of the client's sources.
            wants: whether the blob will arrive, if it is not complete.
            must_have: wait for another process that fetches it; otherwise use only what the cache has at once.
        """
        assert self._origin is not None
        registry, descriptor, stall = self._origin[0], blob.descriptor, self.channel.terms.stall_seconds
        cached = await registry.find(descriptor)
        is_begun = must_have or await in_thread(context.executor, context.store.has_partial, descriptor.digest)
        if cached is not None or not wants or not is_begun:
            blob.fill(cached, None)
            return
        lock = context.store.lock(descriptor.digest)
        try:
            if not await lock.try_acquire_async(context.executor):
                if not must_have:
                    return
                context.on_event(Waiting(self.source, descriptor.digest))
                async with asyncio.timeout(stall):
                    await lock.acquire(context.executor)
            cached = await registry.find(descriptor)  # another process may have published it meanwhile
            if cached is not None:
                await lock.release_async(context.executor)
                blob.fill(cached, None)
                return
            begin = context.store.begin
            blob.fill(None, await in_thread(context.executor, begin, descriptor.digest, descriptor.size, lock))
        except TimeoutError as error:
            reason = f"another process has been fetching {descriptor.digest} for {stall:.0f} s"
            raise CacheError(context.store.root, reason) from error
        except BaseException:
            await lock.release_async(context.executor)
            raise

    # --- progress

    async def receive(self, from_rank: int, frame: Frame, memory: memoryview) -> None:
        """Take in a frame of this image."""
        if self._exchange is not None:
            await self._exchange.receive(from_rank, frame, memory)
            self._update_times()

    def on_event(self, event: Event) -> None:
        """Record the pipeline's progress."""
        if isinstance(event, LayerProgress):
            self._unpacked[str(event.digest)] = event.read + event.unpacked

    def progress(self) -> TaskProgress:
        """Return this rank's progress."""
        self._update_times()
        arrived = self._exchange.available if self._exchange else 0
        return TaskProgress(
            self.number,
            available=self._build_member.progress if self._build_member else arrived,
            arrived=arrived,
            sent=sum(self._sender.sent.values()) if self._sender else 0,
            unpacked=sum(self._unpacked.values()),
        )

    def _update_times(self) -> None:
        exchange = self._exchange
        if self._build_member is not None:
            self._exchange_seconds = max(0.0, self._build_member.gathered_at - self._began)
        elif exchange is not None and not self._exchange_seconds and exchange.available >= sum(self.blob_sizes):
            self._exchange_seconds = time.monotonic() - self._began

    # --- the end

    @property
    def reason(self) -> str:
        """The error's message, with the ranks that the damaged bytes came from; empty if there is no error."""
        error = self.error
        if error is None:
            return ""
        origins = [
            rank
            for blob in self._blobs
            if isinstance(error, DigestMismatch) and error.expected == str(blob.descriptor.digest)
            for rank in sorted(blob.origins)
        ]
        if not origins:
            return error.message
        return f"{error.message}; bytes came from {', '.join(map(self.channel.name, origins))}"

    def fail(self, error: FastpullError) -> None:
        """Stop this rank's work on the image; readers of its blobs get the error."""
        if self.error is None:
            self.error = error
            self.stopped.set()
            if self._exchange is not None:
                self._exchange.fail(error)

    def report(self) -> TaskReport:
        """Return this rank's report."""
        self._update_times()
        exchange, member = self._exchange, self._build_member
        sent = self._sender.sent if self._sender else dict.fromkeys(FrameKind, 0)
        return TaskReport(
            resolve_seconds=round(self._resolve_seconds, 3),
            exchange_seconds=round(self._exchange_seconds, 3),
            fetched=exchange.fetched if exchange else 0,
            received=exchange.received if exchange else 0,
            sent=sent[FrameKind.BLOB],
            built=tuple(sorted(member.built)) if member else (),
            runs_received=member.received if member else 0,
            runs_sent=sent[FrameKind.ARTIFACT],
            assembled_seconds=round(max(0.0, member.assembled_at - self._began), 3) if member else 0.0,
            max_memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            error=self.reason,
            cause_exit_code=self.error.exit_code if self.error else 0,
        )

    async def close(self) -> None:
        """End the work on this rank."""
        if self._exchange is not None:
            await self._exchange.close()
