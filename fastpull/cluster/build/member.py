"""One rank's part in making the products of an image's layers together.

::

    the engine:   mine? ── yes ──> make ─ grow … ─> finish          no ──> wait until it has come
    a product:    windows down a tree of those who lack it, while it grows ─> verified by its seal
    all have all: assemble ─> fingerprints compared by the root ─> publish
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any

from fastpull.cluster.build.builders import MemberState, lacking
from fastpull.cluster.control.channel import ROOT
from fastpull.cluster.transport.send_queue import SendRequest
from fastpull.cluster.blobs.plan import STRETCH_SIZE, next_ranks
from fastpull.cluster.build.artifacts import FILES
from fastpull.cluster.transport.frame import FrameKind
from fastpull.errors import OutputDiffers
from fastpull.concurrency.threads import in_thread

if TYPE_CHECKING:
    from fastpull.cluster.control.channel import ControlChannel
    from fastpull.cluster.transport.sender import Sender
    from fastpull.cluster.build.artifacts import LayerArtifact
    from fastpull.cluster.transport.frame import Frame

_EDITIONS = 1 << 8  # that one rank may begin in one round


class BuildMember:
    """The products on this rank.

    Args:
        number: of the image within the job.
        source: the image, for messages.
        products: of all layers, with the places for those that are received.
        weights: bytes of each layer's blob: what is told of progress is in them.
        council: of the job.
        post: for what is sent.
        executor: for blocking calls on files.

    Attributes:
        received: bytes of products so far.
        made: the layers whose products this rank has made.
        gathered_at, assembled_at: when all products were here, and when this rank had made its file of them, by the
            clock of `time.monotonic`; 0 before.
    """

    def __init__(
        self,
        number: int,
        source: str,
        products: Sequence[LayerArtifact],
        weights: Sequence[int],
        council: ControlChannel,
        post: Sender,
        executor: Executor,
    ) -> None:
        self._number = number
        self._source = source
        self._products = products
        self._weights = weights
        self._council = council
        self._post = post
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._sources: dict[int, int] = {}
        self._lacking: list[list[int]] = [[] for _ in products]
        self._arrived = [0] * len(products)
        self._changed = asyncio.Event()
        self._assemble = asyncio.Event()
        self._verdict: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._has_told = False
        self.received = 0
        self.made: list[int] = []
        self.gathered_at = self.assembled_at = 0.0
        for product in products:
            product.on_grown = partial(self._on_grown, product)
        council.on(f"{number}.assemble", lambda *_: self._assemble.set())
        council.on(f"{number}.verdict", self._on_verdict)

    # --- for the engine

    async def is_mine(self, layer: int) -> bool:
        """Waits until a layer's product is here, or is to be made here; returns whether it is to be made."""
        product = self._products[layer]
        while not product.is_complete:
            if self._sources.get(layer) == self._council.rank:
                return True
            await self._changed.wait()
        return False

    async def finish(self, layer: int) -> None:
        """Says that a layer's product, which this rank was to make, is complete.

        Raises:
            FastpullError: the filesystem refuses.
        """
        await in_thread(self._executor, self._products[layer].finish)
        self.made.append(layer)
        self._council.post(ROOT, f"{self._number}.finished", {"layer": layer})
        self._look()

    async def gathered(self) -> None:
        """Waits until all ranks have all products: from then on nobody reads the files of another."""
        await self._assemble.wait()

    async def agree(self, fingerprint: str) -> None:
        """Waits until all ranks have made the same of the products.

        Args:
            fingerprint: of what this rank has made.

        Raises:
            OutputDiffers: this one has made something else than most, or nobody knows who is right.
        """
        self.assembled_at = time.monotonic()
        self._council.post(ROOT, f"{self._number}.made", {"fingerprint": fingerprint})
        verdict = await self._verdict
        if self._council.rank in verdict["odd"]:
            raise OutputDiffers(self._source, tuple(verdict["makers"]))

    # --- for the exchange

    @property
    def has(self) -> list[bool]:
        """For each layer whether its product is here."""
        return [product.is_complete for product in self._products]

    @property
    def progress(self) -> int:
        """How far the products are, as bytes of blobs."""
        return sum(
            weight if product.is_complete else min(weight, arrived)
            for product, weight, arrived in zip(self._products, self._weights, self._arrived, strict=True)
        )

    def plan(self, round_: int, sources: Sequence[int], makers: Mapping[int, MemberState]) -> None:
        """Begins a round: what is here of the products that come from here is sent, as far as it is lacked."""
        self._sources = dict(enumerate(sources))
        self._lacking = [lacking(makers, layer, source) for layer, source in enumerate(sources)]
        for product in self._products:
            product.first_edition = round_ * _EDITIONS + 1
            if self._sources[product.layer] == self._council.rank:
                for file, content in enumerate(product.files):
                    self._pass_on(product, product.edition, file, self._council.rank, 0, content.front)
        self._pulse()
        self._look()

    async def receive(self, window: Frame, memory: memoryview) -> None:
        """Takes in a window that is sound, and passes it on.

        Raises:
            FastpullError: it cannot be kept, or the product that it completes is damaged.
        """
        layer, file = divmod(window.item, FILES)
        product = self._products[layer]
        if self._sources.get(layer) == self._council.rank or window.part < product.edition or product.is_complete:
            return
        if window.part > product.edition:
            product.begin(window.part)
            self._arrived[layer] = 0
        put = partial(product.files[file].put, window.part, window.offset, memory, window.total)
        if not await in_thread(self._executor, put):
            return
        self.received += window.size
        self._arrived[layer] += window.size
        self._pass_on(product, window.part, file, window.origin, window.offset, window.offset + window.size)
        if await in_thread(self._executor, product.verify):
            self._look()

    def close(self) -> None:
        """Ends it on this rank."""
        for product in self._products:
            product.close()

    # --- underneath

    def _on_grown(self, product: LayerArtifact, edition: int, file: int, start: int, stop: int) -> None:
        rank = self._council.rank
        self._loop.call_soon_threadsafe(self._pass_on, product, edition, file, rank, start, stop)

    def _pass_on(self, product: LayerArtifact, edition: int, file: int, origin: int, start: int, stop: int) -> None:
        """Has a part of a file sent to those who come next; which tree they stand in turns with the place."""
        wanting, fan_out = self._lacking[product.layer], self._council.terms.fan_out
        item = product.layer * FILES + file
        while start < stop:
            step = start // STRETCH_SIZE
            end = min(stop, (step + 1) * STRETCH_SIZE)
            turn = product.layer + step
            ranks = next_ranks(self._council.rank, origin, wanting, turn, fan_out)
            self._post.put(ranks, SendRequest(product.files[file], FrameKind.PRODUCT, item, edition, turn, origin, start, end))
            start = end

    def _look(self) -> None:
        """Tells the root when all products are here."""
        self._pulse()
        if not self._has_told and all(self.has):
            self._has_told = True
            self.gathered_at = time.monotonic()
            self._council.post(ROOT, f"{self._number}.gathered")

    def _on_verdict(self, _: int, verdict: dict[str, Any]) -> None:
        if not self._verdict.done():
            self._verdict.set_result(verdict)

    def _pulse(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
