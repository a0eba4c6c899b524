"""One image on one rank of a job: what it is, where its bytes are, and how far this rank has come."""

from __future__ import annotations

import asyncio
import resource
import time
from typing import TYPE_CHECKING, Any

from fastpull.cluster.blobs.exchange import Exchange
from fastpull.cluster.blobs.local_blob import LocalBlob
from fastpull.cluster.build.member import BuildMember
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
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.image import Image
    from fastpull.sources.blobs import SourceContext
    from fastpull.sources.registry import RegistrySource


class ImageTask:
    """An image at hand.

    Args:
        number: of the image within the job.
        source: as it was given.
        council: of the job.

    Attributes:
        image: what it is, once that is known.
        ranks: how many take part, likewise.
        error: why this rank can do no more for it.
        stopped: set with the error.
    """

    def __init__(self, number: int, source: str, council: ControlChannel) -> None:
        self.number = number
        self.source = source
        self.council = council
        self.image: Image | None = None
        self.error: FastpullError | None = None
        self.stopped = asyncio.Event()
        self.ranks = 0
        self._blobs: tuple[Descriptor, ...] = ()
        self._place: tuple[RegistrySource, SourceContext] | None = None
        self._joining = asyncio.Lock()
        self._shelves: list[LocalBlob] = []
        self._exchange: Exchange | None = None
        self._building: BuildMember | None = None
        self._post: Sender | None = None
        self._began = time.monotonic()
        self._resolve_seconds = self._exchange_seconds = 0.0
        self._read: dict[str, int] = {}

    def resolved(self, image: Image, ranks: int, registry: RegistrySource, context: SourceContext) -> None:
        """Takes note of what the image is, and where it is.

        Args:
            image: as all ranks know it.
            ranks: how many take part.
            registry: that has it.
            context: of the client.
        """
        self.image, self.ranks, self._place = image, ranks, (registry, context)
        self._blobs = tuple({layer.blob.digest: layer.blob for layer in image.layers}.values())
        self._resolve_seconds = time.monotonic() - self._began

    @property
    def blob_sizes(self) -> list[int]:
        """Of the image's blobs, in bytes."""
        return [blob.size for blob in self._blobs]

    @property
    def blob_numbers(self) -> list[int]:
        """For each layer of the image the number of its blob: one may be several layers."""
        numbers = {blob.digest: number for number, blob in enumerate(self._blobs)}
        return [numbers[layer.blob.digest] for layer in self.image.layers] if self.image is not None else []

    async def build(self, products: Sequence[LayerArtifact]) -> BuildMember | None:
        """Takes part in making the products of all layers with the other ranks.

        Args:
            products: of the layers, with places for those that are received; closed at the end.

        Returns:
            None if there is nobody else, or this rank has taken part already: it makes all by itself then.

        Raises:
            CacheError: as from `join`.
        """
        if self.ranks < 2 or self._exchange is not None:
            return None
        await self.join(wants=True, products=products)
        return self._building

    async def shelf(self, descriptor: Descriptor) -> LocalBlob:
        """Where a blob is, or comes; all begin to come with the first that is asked for."""
        await self.join(wants=True)
        return next(shelf for shelf in self._shelves if shelf.descriptor.digest == descriptor.digest)

    async def join(self, *, wants: bool, products: Sequence[LayerArtifact] | None = None) -> None:
        """Takes part in the exchange, if it does not yet.

        Args:
            wants: this rank needs the blobs that it lacks; otherwise it only gives what it has.
            products: what it needs in place of the blobs; of those it gets what it is to work on.

        Raises:
            CacheError: the blobs cannot be kept, or somebody else on this node does not end fetching one.
        """
        async with self._joining:
            if self._exchange is not None or self._place is None:
                return
            if self.error is not None:
                raise self.error
            registry, context = self._place
            try:
                for blob in self._blobs:
                    self._shelves.append(LocalBlob(blob, None, None))
                    await self._fill(self._shelves[-1], context, wants=wants, is_patient=products is None)
            except BaseException:
                for shelf in self._shelves:
                    await in_thread(context.executor, shelf.close)
                self._shelves = []
                raise
            meter = PullTimer()
            parts = [meter.layer(number) for number in range(len(self._blobs))]

            async def fetch(blob: int, tap: RangeTarget, is_all: bool) -> None:
                await registry.fetch(self._blobs[blob], tap, blob, parts[blob], is_all=is_all)

            async def find_room(shelf: LocalBlob) -> None:
                await self._fill(shelf, context, wants=True, is_patient=True)

            post = self._post = Sender(self.number, self.council, context.executor, self.fail)
            work = self.council, post, context.executor
            if products is not None:
                sizes, numbers = self.blob_sizes, self.blob_numbers
                weights = [sizes[blob] if blob not in numbers[:layer] else 0 for layer, blob in enumerate(numbers)]
                self._building = BuildMember(self.number, self.source, products, weights, *work)
            self._exchange = Exchange(
                self.number,
                self._shelves,
                self.ranks,
                *work,
                self.fail,
                wants=wants,
                building=self._building,
                find_room=find_room,
                fetch=fetch,
            )

    async def _fill(self, shelf: LocalBlob, context: SourceContext, *, wants: bool, is_patient: bool) -> None:
        """Finds a blob in the cache, or begins it there.

        Args:
            shelf: of the blob.
            context: of the client.
            wants: the blob is to come, if it is not there.
            is_patient: it is to come here; otherwise only what is there of it is of use, and nobody is waited for.
        """
        assert self._place is not None
        registry, blob, stall = self._place[0], shelf.descriptor, self.council.terms.stall_seconds
        cached = await registry.find(blob)
        is_begun = is_patient or await in_thread(context.executor, context.store.has_partial, blob.digest)
        if cached is not None or not wants or not is_begun:
            shelf.fill(cached, None)
            return
        lock = context.store.lock(blob.digest)
        try:
            if not await lock.try_acquire_async(context.executor):
                if not is_patient:
                    return
                context.on_event(Waiting(self.source, blob.digest))
                async with asyncio.timeout(stall):
                    await lock.acquire(context.executor)
            cached = await registry.find(blob)  # published while we waited
            if cached is not None:
                await lock.release_async(context.executor)
                shelf.fill(cached, None)
                return
            shelf.fill(None, await in_thread(context.executor, context.store.begin, blob.digest, blob.size, lock))
        except TimeoutError as error:
            reason = f"another process has been fetching {blob.digest} for {stall:.0f} s"
            raise CacheError(context.store.root, reason) from error
        except BaseException:
            await lock.release_async(context.executor)
            raise

    # --- while it goes on

    async def receive(self, sender: int, header: Any, memory: memoryview) -> None:
        """Takes in a window of this image."""
        if self._exchange is not None:
            await self._exchange.receive(sender, header, memory)
            self._look_at_clock()

    def on_event(self, event: Event) -> None:
        """Takes note of how far the engine is."""
        if isinstance(event, LayerProgress):
            self._read[str(event.digest)] = event.read + event.unpacked

    def state(self) -> dict[str, Any]:
        """How far this rank is; changes while it gets anywhere."""
        self._look_at_clock()
        exchange = self._exchange
        return {
            "image": self.number,
            "there": self._building.progress if self._building else exchange.total if exchange else 0,
            "arrived": exchange.total if exchange else 0,
            "sent": sum(self._post.sent.values()) if self._post else 0,
            "read": sum(self._read.values()),
        }

    def _look_at_clock(self) -> None:
        if self._building is not None:
            self._exchange_seconds = max(0.0, self._building.gathered_at - self._began)
        elif self._exchange is not None and not self._exchange_seconds and self._exchange.total >= sum(self.blob_sizes):
            self._exchange_seconds = time.monotonic() - self._began

    # --- the end

    @property
    def reason(self) -> str:
        """Why this rank can do no more, with those whose bytes were wrong; empty if it can."""
        error = self.error
        if error is None:
            return ""
        origins = [
            rank
            for shelf in self._shelves
            if isinstance(error, DigestMismatch) and error.expected == str(shelf.descriptor.digest)
            for rank in sorted(shelf.origins)
        ]
        if not origins:
            return error.message
        return f"{error.message}; bytes came from {', '.join(map(self.council.name, origins))}"

    def fail(self, error: FastpullError) -> None:
        """Says that this rank can do no more for the image; whoever reads one of its blobs gets the error."""
        if self.error is None:
            self.error = error
            self.stopped.set()
            if self._exchange is not None:
                self._exchange.fail(error)

    def report(self) -> dict[str, Any]:
        """What this rank did, for `fastpull.cluster.root.report.NodeReport`."""
        self._look_at_clock()
        exchange, building = self._exchange, self._building
        sent = self._post.sent if self._post else dict.fromkeys(FrameKind, 0)
        return {
            "resolve_seconds": round(self._resolve_seconds, 3),
            "exchange_seconds": round(self._exchange_seconds, 3),
            "fetched": exchange.fetched if exchange else 0,
            "received": exchange.received if exchange else 0,
            "sent": sent[FrameKind.BLOB],
            "built": sorted(building.made) if building else [],
            "runs_received": building.received if building else 0,
            "runs_sent": sent[FrameKind.PRODUCT],
            "assembled_seconds": round(max(0.0, building.assembled_at - self._began), 3) if building else 0.0,
            "max_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            "error": self.reason,
            "cause_exit_code": self.error.exit_code if self.error else 0,
        }

    async def close(self) -> None:
        """Ends it on this rank."""
        if self._exchange is not None:
            await self._exchange.close()
