"""The blobs of an image's layers: opened, processed on the threads of the layers, accepted or rejected."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fastpull.concurrency.semaphores import OrderedStart
from fastpull.concurrency.threads import in_thread, repeating, task_group
from fastpull.errors import DigestMismatch, FastpullError, LockLost, SizeMismatch
from fastpull.layers.tree import entry_of, layer_of
from fastpull.pipeline.layer import LayerPipeline
from fastpull.telemetry.events import LayerDone, LayerProgress, Warned
from fastpull.telemetry.timing import PullTimer, waiting
from fastpull.telemetry.trace import Stage, Wait

if TYPE_CHECKING:
    from fastpull.layers.tree import Origin
    from fastpull.oci.image import Image
    from fastpull.pipeline.context import PullContext
    from fastpull.sources.base import Blob, Source

T = TypeVar("T")
TICK_SECONDS = 0.1
"""Seconds between two progress events."""
_PATIENCE_SECONDS = 0.5
"""Seconds that layers wait until a larger one is open: milliseconds, unless another process downloads its blob."""


async def warm_image(image: Image, source: Source, context: PullContext, rank: int) -> None:
    """Download the layers of an image into the cache, and verify them.

    Args:
        image: the image, with its layers.
        source: the source of the blobs.
        context: resources shared with other pulls.
        rank: rank among concurrent images; the lowest gets its connections first.
    """
    blobs = LayerBlobs(image, source, context, PullTimer())
    async with blobs.progress(), task_group() as group:
        for number in blobs.by_size:
            group.create_task(blobs.use(number, rank, LayerPipeline.verify))


class LayerBlobs:
    """The blobs of an image's layers.

    Args:
        image: the image, with its layers.
        source: the source of the blobs.
        context: resources shared with other pulls.
        timer: measures where the time goes.

    Attributes:
        by_size: numbers of the layers, the largest first; in this order the work ends earliest.
        cached: number of layers whose blob the cache had.
    """

    def __init__(self, image: Image, source: Source, context: PullContext, timer: PullTimer) -> None:
        self._image = image
        self._source = source
        self._context = context
        self._open: dict[int, tuple[LayerPipeline, Blob]] = {}
        self._told: dict[int, tuple[int, int, int]] = {}
        self._timers = [timer.layer(number, self._title(number)) for number in range(len(image.layers))]
        self._start = OrderedStart(_PATIENCE_SECONDS)
        self.by_size = sorted(range(len(image.layers)), key=lambda number: -image.layers[number].blob.size)
        self.cached = 0

    async def use(self, number: int, rank: int, process: Callable[[LayerPipeline, Blob], T]) -> T:
        """Process the blob of a layer on a thread; return the result of `process`.

        A damaged blob of the cache is removed, and processing starts over with the blob of the source. The same holds
        if a mirror sent wrong bytes and another endpoint is left. A blob damaged in transfer is fetched once more.

        Args:
            number: number of the layer.
            rank: rank for connections and for a thread; the lowest goes first.
            process: reads and verifies the whole blob; blocks until that is done.

        Raises:
            FastpullError: the blob cannot be read or processed.
        """
        layer, source = self._image.layers[number], self._image.source
        subject = f"{layer.blob.digest}, {number + 1} of {len(self._image.layers)} of {source}"
        timer, on_event = self._timers[number], self._context.on_event
        may_repeat = True
        wait_in_order = self._start.enter()
        while True:
            work = LayerPipeline(layer, number, subject, self._context, timer)
            async with self._source.open_blob(layer.blob, rank, timer) as blob:
                self._open[number] = work, blob
                try:
                    await wait_in_order()
                    result = await self._on_thread(work, rank, process, blob)
                except (DigestMismatch, SizeMismatch) as error:
                    await blob.reject()
                    if blob.is_fresh and not (blob.is_remote and may_repeat):
                        raise
                    may_repeat = may_repeat and blob.is_cached
                    on_event(Warned(source, f"a damaged blob was thrown away, it is fetched anew ({error})"))
                    continue
                except FastpullError:
                    if work.fingerprint:  # the blob itself is valid
                        with suppress(LockLost):
                            await blob.accept(work.fingerprint)
                    raise
                finally:
                    del self._open[number]
                try:
                    await blob.accept(work.fingerprint)
                except LockLost as error:
                    on_event(Warned(source, str(error)))
                    continue
                self.cached += blob.is_cached
                self._tell(work, blob)
                on_event(LayerDone(source, layer.blob.digest, layer.blob.size, work.unpacked, blob.is_cached))
                return result

    async def read_file(self, origin: Origin, size: int) -> bytes:
        """Return the content of a small file of a layer that was processed.

        Args:
            origin: origin of the file.
            size: size of the file, in bytes.
        """
        number, entry = layer_of(origin), entry_of(origin)
        layer, timer = self._image.layers[number], self._timers[number]
        subject = f"{layer.blob.digest} of {self._image.source}"
        work = LayerPipeline(layer, number, subject, self._context, timer)

        def extract(work: LayerPipeline, blob: Blob) -> bytes:
            return work.extract(blob, entry, size, self._context.limits)

        async with self._source.open_blob(layer.blob, number, timer) as blob:
            return await self._on_thread(work, number, extract, blob)

    async def _on_thread(
        self, work: LayerPipeline, rank: int, process: Callable[[LayerPipeline, Blob], T], blob: Blob
    ) -> T:
        with self._timers[work.number].lane(Stage.READ) as lane, waiting(lane, Wait.TURN):
            permit = await self._context.permits.acquire(rank)
        with permit:
            abort = partial(work.abort, blob)
            return await in_thread(self._context.workers, self._context.cores.run, process, work, blob, abort=abort)

    def progress(self) -> AbstractAsyncContextManager[None]:
        """Send progress events of the open blobs while the context lasts."""
        return repeating(TICK_SECONDS, self._tell_all)

    def _tell_all(self) -> None:
        for work, blob in list(self._open.values()):
            self._tell(work, blob)

    def _title(self, number: int) -> str:
        blob = self._image.layers[number].blob
        return f"layer {number + 1} of {len(self._image.layers)}, {blob.digest.short}, {blob.size} bytes"

    def _tell(self, work: LayerPipeline, blob: Blob) -> None:
        state = (work.read, work.unpacked, blob.present)
        if self._told.get(work.number) != state:
            self._told[work.number] = state
            layer = work.layer.blob
            self._context.on_event(LayerProgress(self._image.source, layer.digest, layer.size, *state))
