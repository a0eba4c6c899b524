"""The blobs of an image's layers, on their way from the source to the layers' threads."""

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
"""Between two events on the progress of the same thing."""
_PATIENCE_SECONDS = 0.5
"""How long layers wait for a larger one to be opened: it takes milliseconds, unless somebody else is downloading it."""


async def warm_image(image: Image, source: Source, workshop: PullContext, rank: int) -> None:
    """Brings the layers of an image into the cache, verified.

    Args:
        image: with its layers.
        source: that gives the blobs.
        workshop: to work in.
        rank: of several images at once the lowest gets its connections first.
    """
    blobs = LayerBlobs(image, source, workshop, PullTimer())
    async with blobs.progress(), task_group() as group:
        for number in blobs.by_size:
            group.create_task(blobs.use(number, rank, LayerPipeline.verify))


class LayerBlobs:
    """The blobs of an image's layers: opened, worked on when it is their turn, and accepted or rejected.

    Attributes:
        by_size: the numbers of the layers, the largest first, as they are to be used: the work ends earliest then.
        cached: how many of them the cache had.
    """

    def __init__(self, image: Image, source: Source, workshop: PullContext, meter: PullTimer) -> None:
        self._image = image
        self._source = source
        self._workshop = workshop
        self._open: dict[int, tuple[LayerPipeline, Blob]] = {}
        self._told: dict[int, tuple[int, int, int]] = {}
        self._parts = [meter.layer(number, self._title(number)) for number in range(len(image.layers))]
        self._passage = OrderedStart(_PATIENCE_SECONDS)
        self.by_size = sorted(range(len(image.layers)), key=lambda number: -image.layers[number].blob.size)
        self.cached = 0

    async def use(self, number: int, rank: int, work_on: Callable[[LayerPipeline, Blob], T]) -> T:
        """Works on a layer's blob on a thread.

        A blob that was in the cache, in whole or in part, and is not what it should be, is taken out of the cache, and
        the work begins again with one from the source; so it does where a mirror gave wrong bytes and another place can
        be asked. One that was spoiled on its way is fetched once more.

        Args:
            number: of the layer.
            rank: of its connections and its turn, the lowest first.
            work_on: blocks until all of the blob is read and verified.
        """
        layer, source = self._image.layers[number], self._image.source
        may_repeat = True
        pass_in_order = self._passage.come()
        while True:
            subject = f"{layer.blob.digest}, {number + 1} of {len(self._image.layers)} of {source}"
            part = self._parts[number]
            work = LayerPipeline(layer, number, subject, self._workshop.helpers, self._workshop.windows, part)
            async with self._source.open_blob(layer.blob, rank, part) as blob:
                self._open[number] = work, blob
                try:
                    await pass_in_order()
                    result = await self._on_thread(work, rank, work_on, blob)
                except (DigestMismatch, SizeMismatch) as error:
                    await blob.reject()
                    if blob.is_fresh and not (blob.is_remote and may_repeat):
                        raise
                    may_repeat = may_repeat and blob.is_cached
                    self._workshop.on_event(
                        Warned(source, f"a damaged blob was thrown away, it is fetched anew ({error})")
                    )
                    continue
                except FastpullError:
                    if work.fingerprint:  # what is wrong is not the blob
                        with suppress(LockLost):
                            await blob.accept(work.fingerprint)
                    raise
                finally:
                    del self._open[number]
                try:
                    await blob.accept(work.fingerprint)
                except LockLost as error:
                    self._workshop.on_event(Warned(source, str(error)))
                    continue
                self.cached += blob.is_cached
                self._tell(work, blob)
                self._workshop.on_event(
                    LayerDone(source, layer.blob.digest, layer.blob.size, work.unpacked, blob.is_cached)
                )
                return result

    async def read_file(self, origin: Origin, size: int) -> bytes:
        """Reads a small file of a layer that was used before.

        Args:
            origin: its entry.
            size: of it, in bytes.
        """
        number, entry = layer_of(origin), entry_of(origin)
        layer, part = self._image.layers[number], self._parts[number]
        subject = f"{layer.blob.digest} of {self._image.source}"
        work = LayerPipeline(layer, number, subject, None, self._workshop.windows, part)

        def extract(work: LayerPipeline, blob: Blob) -> bytes:
            return work.extract(blob, entry, size, self._workshop.limits)

        async with self._source.open_blob(layer.blob, number, part) as blob:
            return await self._on_thread(work, number, extract, blob)

    async def _on_thread(
        self, work: LayerPipeline, rank: int, work_on: Callable[[LayerPipeline, Blob], T], blob: Blob
    ) -> T:
        with self._parts[work.number].lane(Stage.READ) as lane, waiting(lane, Wait.TURN):
            turn = await self._workshop.turns.acquire(rank)
        with turn:
            abort = partial(work.abort, blob)
            return await in_thread(self._workshop.workers, work_on, work, blob, abort=abort)

    def progress(self) -> AbstractAsyncContextManager[None]:
        """Tell, as long as the context lasts, how far the open blobs have come."""
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
            self._workshop.on_event(LayerProgress(self._image.source, layer.digest, layer.size, *state))
