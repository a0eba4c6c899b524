"""The engine: the one place where source, cache, layers and sink meet.

::

    one task per layer:   open blob ─> turn ─> unpack on a thread ─> accept blob, keep index
    all layers are in:    merge ─> what runtimes want on top ─> sink.commit ─> published
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fastpull.concurrency.memory import give_back_freed_memory
from fastpull.concurrency.threads import in_thread, task_group
from fastpull.config.cpu import available_cores
from fastpull.errors import LayerError, LimitExceeded
from fastpull.layers.index import LayerIndex
from fastpull.layers.merge import merge
from fastpull.layers.quota import Quota
from fastpull.pipeline.blobs import LayerBlobs, T
from fastpull.pipeline.report import PullReport
from fastpull.pipeline.runtime_layer import RuntimeLayer
from fastpull.telemetry.bottleneck import find_bottleneck
from fastpull.telemetry.events import Committing, Warned
from fastpull.telemetry.trace import Stage

if TYPE_CHECKING:
    from fastpull.layers.tree import Tree
    from fastpull.oci.image import Image
    from fastpull.pipeline.context import PullContext
    from fastpull.pipeline.distributed import DistributedBuilder
    from fastpull.pipeline.layer import LayerPipeline
    from fastpull.runtimes.base import RuntimeProfile
    from fastpull.sinks.base import Sink, SinkReport
    from fastpull.sources.base import Blob, Source
    from fastpull.telemetry.bottleneck import Bottleneck
    from fastpull.telemetry.timing import PullTimer

_MANY_ENTRIES = 200_000
"""From so many on, what the scanners' threads have freed is worth having again: of a million entries 105 MiB."""


async def _alone(_: Sequence[int]) -> DistributedBuilder | None:
    return None


class Pull:
    """One image on its way into one sink.

    Args:
        image: with its layers.
        source: that gives the blobs.
        sink: begun already.
        workshop: to work in.
        meter: counts where the time goes.
        profiles: of the runtimes that the output is for.
        share: finds out whether the work is shared with other nodes; gets the numbers of the layers, the largest first.

    Raises:
        MalformedDocument: the image's config says something that a runtime cannot be told.
    """

    def __init__(
        self,
        image: Image,
        source: Source,
        sink: Sink,
        workshop: PullContext,
        meter: PullTimer,
        profiles: Sequence[RuntimeProfile] = (),
        share: Callable[[Sequence[int]], Awaitable[DistributedBuilder | None]] = _alone,
    ) -> None:
        self._image = image
        self._dressing = RuntimeLayer(image, profiles)
        self._sink = sink
        self._workshop = workshop
        self._meter = meter
        self._share = share
        self._blobs = LayerBlobs(image, source, workshop, meter)
        self._shared: DistributedBuilder | None = None

    async def run(self) -> PullReport:
        """Does it all.

        Raises:
            FastpullError: whatever went wrong; the sink is to be aborted then.
        """
        started, cpu = time.monotonic(), time.thread_time()
        shared = self._shared = await self._share(self._blobs.by_size)
        # what others make for all, or this node for them, is made whole
        foreseen = await self._in_files(self._foresee) if shared is None else None
        indexes = await self._unpack(foreseen)
        if foreseen and any(index is not known for index, known in zip(indexes, foreseen.indexes, strict=True)):
            # an index in the cache was not that of its layer: what it called dead may live
            foreseen = None
            self._blobs.cached = 0
            indexes = await self._unpack(None)
        unpacked = time.monotonic()
        tree = foreseen
        if tree is None:
            tree = await self._in_files(self._merge, indexes)
        if self._dressing:
            await self._dress(tree)
        merged = time.monotonic()
        entries = sum(map(len, indexes))
        self._workshop.on_event(Committing(self._image.source, entries))
        created = self._image.config.created_seconds
        if shared is not None:
            output: SinkReport = await shared.commit(tree, created)
        else:
            output = await in_thread(self._workshop.files, self._sink.commit, tree, created, abort=self._sink.cancel)
        self._warn(tree, output)
        ended = time.monotonic()
        self._meter.loop_cpu_seconds = time.thread_time() - cpu
        return PullReport(
            self._image,
            output,
            entries,
            sum(index.size for index in indexes),
            self._blobs.cached,
            unpacked - started,
            merged - unpacked,
            ended - merged,
            {str(stage): taken for stage, taken in self._meter.stages().items()},
            self._find_bottleneck(unpacked - started, ended - started),
            tuple(self._dressing.warnings),
        )

    def _merge(self, indexes: list[LayerIndex]) -> Tree:
        if sum(map(len, indexes)) > _MANY_ENTRIES:
            give_back_freed_memory()
        with self._meter.image.at(Stage.MERGE):
            return merge(indexes)

    async def _dress(self, tree: Tree) -> None:
        read_file = self._blobs.read_file if self._shared is None else self._shared.read_file
        await self._dressing.look(tree, read_file)
        for warning in self._dressing.warnings:
            self._workshop.on_event(Warned(self._image.source, warning))
        await self._in_files(self._dressing.apply, tree, self._sink)

    def _find_bottleneck(self, layers_seconds: float, seconds: float) -> Bottleneck | None:
        return find_bottleneck(
            self._meter.stages(),
            self._meter.waits(),
            layers_seconds=layers_seconds,
            seconds=seconds,
            cores=available_cores(),
        )

    async def _unpack(self, foreseen: Tree | None) -> list[LayerIndex]:
        """Unpacks all layers side by side, the largest first; of a foreseen tree only what it needs is written."""
        layers = self._image.layers
        wanted = await self._in_files(foreseen.wanted) if foreseen else [None] * len(layers)
        known = foreseen.indexes if foreseen else [None] * len(layers)
        quota = Quota(self._workshop.limits, await self._in_files(self._sink.room))
        async with self._blobs.progress(), task_group() as group:
            tasks = {
                number: group.create_task(self._make_layer(number, rank, wanted[number], quota, known[number]))
                for rank, number in enumerate(self._blobs.by_size)
            }
        return [tasks[number].result() for number in range(len(layers))]

    async def _make_layer(
        self, number: int, rank: int, wanted: bytearray | None, quota: Quota, known: LayerIndex | None
    ) -> LayerIndex:
        """Unpacks a layer, unless another node does that for all."""
        make = partial(self._unpack_layer, number, rank, wanted, quota, known)
        return await (make() if self._shared is None else self._shared.layer(number, quota, make))

    async def _unpack_layer(
        self, number: int, rank: int, wanted: bytearray | None, quota: Quota, known: LayerIndex | None
    ) -> LayerIndex:
        """Unpacks one; returns the index that is known if the layer's is equal: it need not be there twice."""

        def unpack(work: LayerPipeline, blob: Blob) -> LayerIndex:
            return work.unpack(blob, self._sink, rank, wanted, quota)

        index = await self._blobs.use(number, rank, unpack)
        if known is not None and index.columns == known.columns:
            return known
        await self._in_files(self._workshop.store.indexes.write, index.blob, index.to_bytes())
        return index

    def _foresee(self) -> Tree | None:
        """The tree, if the cache has the indexes of all layers: it tells what need not be written."""
        found = []
        for layer in self._image.layers:
            content = self._workshop.store.indexes.read(layer.blob.digest)
            try:
                index = LayerIndex.from_bytes(content) if content else None
                if index is not None:
                    index.check()
            except ValueError:
                index = None
            if index is None or (index.blob, index.diff_id) != (layer.blob.digest, layer.diff_id):
                return None
            found.append(index)
        try:
            return self._merge(found)
        except (LayerError, LimitExceeded):
            return None  # to be said when the layers themselves say so

    def _warn(self, tree: Tree, output: SinkReport) -> None:
        source, on_event = self._image.source, self._workshop.on_event
        if tree.repeated_count:
            example = tree.repeated[0].decode(errors="backslashreplace")
            message = (
                f"{tree.repeated_count} paths stand in one layer more than once, such as {example!r}; the last counts"
            )
            on_event(Warned(source, message))
        for kind, count in output.left_out.items():
            on_event(Warned(source, f"{count} {kind} left out"))
        for warning in output.warnings:
            on_event(Warned(source, warning))

    async def _in_files(self, function: Callable[..., T], *args: object) -> T:
        return await in_thread(self._workshop.files, function, *args)
