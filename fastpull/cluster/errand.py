"""One image on one rank of a job: what it is, where its bytes are, and how far this rank has come."""

from __future__ import annotations

import asyncio
import resource
import time
from typing import TYPE_CHECKING, Any

from fastpull.cluster.exchange import Exchange
from fastpull.cluster.shelf import Shelf
from fastpull.errors import CacheError, DigestMismatch, FastpullError
from fastpull.meter import Meter
from fastpull.progress import Event, LayerProgress, Waiting
from fastpull.tasks import in_thread

if TYPE_CHECKING:
    from fastpull.cluster.council import Council
    from fastpull.cluster.shelf import Tap
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.image import Image
    from fastpull.sources.blobs import Means
    from fastpull.sources.registry import RegistrySource


class Errand:
    """An image at hand.

    Args:
        number: of the image within the job.
        source: as it was given.
        council: of the job.

    Attributes:
        image: what it is, once that is known.
        error: why this rank can do no more for it.
        stopped: set with the error.
    """

    def __init__(self, number: int, source: str, council: Council) -> None:
        self.number = number
        self.source = source
        self.council = council
        self.image: Image | None = None
        self.error: FastpullError | None = None
        self.stopped = asyncio.Event()
        self._ranks = 0
        self._blobs: tuple[Descriptor, ...] = ()
        self._place: tuple[RegistrySource, Means] | None = None
        self._joining = asyncio.Lock()
        self._shelves: list[Shelf] = []
        self._exchange: Exchange | None = None
        self._began = time.monotonic()
        self._resolve_seconds = self._exchange_seconds = 0.0
        self._read: dict[str, int] = {}

    def resolved(self, image: Image, ranks: int, registry: RegistrySource, means: Means) -> None:
        """Takes note of what the image is, and where it is.

        Args:
            image: as all ranks know it.
            ranks: how many take part.
            registry: that has it.
            means: of the client.
        """
        self.image, self._ranks, self._place = image, ranks, (registry, means)
        self._blobs = tuple({layer.blob.digest: layer.blob for layer in image.layers}.values())
        self._resolve_seconds = time.monotonic() - self._began

    @property
    def blob_sizes(self) -> list[int]:
        """Of the image's blobs, in bytes."""
        return [blob.size for blob in self._blobs]

    async def shelf(self, descriptor: Descriptor) -> Shelf:
        """Where a blob is, or comes; all begin to come with the first that is asked for."""
        await self.join(wants=True)
        return next(shelf for shelf in self._shelves if shelf.descriptor.digest == descriptor.digest)

    async def join(self, *, wants: bool) -> None:
        """Takes part in the exchange, if it does not yet.

        Args:
            wants: this rank needs the blobs that it lacks; otherwise it only gives what it has.

        Raises:
            CacheError: the blobs cannot be kept, or somebody else on this node does not end fetching one.
        """
        async with self._joining:
            if self._exchange is not None or self._place is None:
                return
            if self.error is not None:
                raise self.error
            registry, means = self._place
            try:
                for blob in self._blobs:
                    self._shelves.append(await self._open_shelf(blob, means, wants=wants))
            except BaseException:
                for shelf in self._shelves:
                    shelf.close()
                self._shelves = []
                raise
            meter = Meter()
            parts = [meter.layer(number) for number in range(len(self._blobs))]

            async def fetch(blob: int, tap: Tap, is_all: bool) -> None:
                await registry.fetch(self._blobs[blob], tap, blob, parts[blob], is_all=is_all)

            self._exchange = Exchange(
                self.number,
                self._shelves,
                self._ranks,
                wants=wants,
                fetch=fetch,
                council=self.council,
                executor=means.executor,
                on_error=self.fail,
            )

    async def _open_shelf(self, blob: Descriptor, means: Means, *, wants: bool) -> Shelf:
        registry = self._place[0] if self._place else None
        assert registry is not None
        cached = await registry.find(blob)
        if cached is not None or not wants:
            return Shelf(blob, cached, None)
        lock = means.store.lock(blob.digest)
        try:
            if not lock.try_acquire():
                means.on_event(Waiting(self.source, blob.digest))
                await asyncio.wait_for(lock.acquire(), self.council.terms.stall_seconds)
            cached = await registry.find(blob)  # published while we waited
            if cached is not None:
                lock.release()
                return Shelf(blob, cached, None)
            partial = await in_thread(means.executor, means.store.begin, blob.digest, blob.size, lock)
        except TimeoutError as error:
            reason = f"another process has been fetching {blob.digest} for {self.council.terms.stall_seconds:.0f} s"
            raise CacheError(means.store.root, reason) from error
        except BaseException:
            lock.release()
            raise
        return Shelf(blob, None, partial)

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
            "there": exchange.total if exchange else 0,
            "sent": exchange.sent if exchange else 0,
            "read": sum(self._read.values()),
        }

    def _look_at_clock(self) -> None:
        if self._exchange is not None and not self._exchange_seconds and self._exchange.total >= sum(self.blob_sizes):
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
        """What this rank did, for `fastpull.cluster.report.NodeReport`."""
        self._look_at_clock()
        exchange = self._exchange
        return {
            "resolve_seconds": round(self._resolve_seconds, 3),
            "exchange_seconds": round(self._exchange_seconds, 3),
            "fetched": exchange.fetched if exchange else 0,
            "received": exchange.received if exchange else 0,
            "sent": exchange.sent if exchange else 0,
            "max_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
            "error": self.reason,
            "cause_exit_code": self.error.exit_code if self.error else 0,
        }

    async def close(self) -> None:
        """Ends it on this rank."""
        if self._exchange is not None:
            await self._exchange.close()
