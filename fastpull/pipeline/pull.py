"""A pull: the one place where source, cache, layers and sink meet.

::

    tree = predict_tree()                     # if the cache has the indexes of all layers
    for each layer, concurrently:             # the largest first
        blob = open_blob()                    # of the cache, or while it is downloaded
        index = unpack(blob) into the sink    # one thread: verify, inflate, scan, write
        accept(blob), keep(index)
    tree = merge(indexes), add_runtime_layer(tree)
    sink.commit(tree)                         # publishes the output
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
from fastpull.pipeline.builder import LocalBuilder
from fastpull.pipeline.report import PullReport
from fastpull.pipeline.runtime_layer import RuntimeLayer
from fastpull.telemetry.bottleneck import find_bottleneck
from fastpull.telemetry.events import Committing, Warned
from fastpull.telemetry.trace import Stage

if TYPE_CHECKING:
    from fastpull.layers.tree import Tree
    from fastpull.oci.image import Image
    from fastpull.pipeline.builder import LayerBuilder
    from fastpull.pipeline.context import PullContext
    from fastpull.pipeline.layer import LayerPipeline
    from fastpull.runtimes.base import RuntimeProfile
    from fastpull.sinks.base import Sink, SinkReport
    from fastpull.sources.base import Blob, Source
    from fastpull.telemetry.bottleneck import Bottleneck
    from fastpull.telemetry.timing import PullTimer

_MANY_ENTRIES = 200_000
"""Above this many entries, return freed memory to the operating system; a million entries free about 105 MiB."""


class Pull:
    """A pull of one image into one sink.

    Args:
        image: the image, with its layers.
        source: the source of the blobs.
        sink: the sink, already begun.
        context: resources shared with other pulls.
        timer: measures where the time goes.
        profiles: profiles of the runtimes that will use the output.
        distribute: returns a builder that shares the work with other nodes, or None. It is given the numbers of the
            layers, the largest first.

    Raises:
        MalformedDocument: the config of the image holds a value that a runtime cannot use.
    """

    def __init__(
        self,
        image: Image,
        source: Source,
        sink: Sink,
        context: PullContext,
        timer: PullTimer,
        profiles: Sequence[RuntimeProfile] = (),
        distribute: Callable[[Sequence[int]], Awaitable[LayerBuilder | None]] | None = None,
    ) -> None:
        self._image = image
        self._runtime_layer = RuntimeLayer(image, profiles)
        self._sink = sink
        self._context = context
        self._timer = timer
        self._distribute = distribute
        self._blobs = LayerBlobs(image, source, context, timer)

    async def run(self) -> PullReport:
        """Pull the image.

        Raises:
            FastpullError: the pull failed; the sink must be aborted.
        """
        started, cpu = time.monotonic(), time.thread_time()
        builder = await self._choose_builder()
        predicted = await self._in_files(self._predict_tree) if builder.may_skip else None
        indexes = await self._build_layers(builder, predicted)
        if predicted and any(index is not known for index, known in zip(indexes, predicted.indexes, strict=True)):
            # an index in the cache was not that of its layer, so that needed entries may have been skipped
            predicted = None
            self._blobs.cached = 0
            indexes = await self._build_layers(builder, None)
        built = time.monotonic()
        tree = predicted if predicted is not None else await self._in_files(self._merge, indexes)
        if self._runtime_layer:
            await self._add_runtime_layer(tree, builder)
        merged = time.monotonic()
        entries = sum(map(len, indexes))
        self._context.on_event(Committing(self._image.source, entries))
        output = await builder.commit(tree, self._image.config.created_seconds)
        self._warn(tree, output)
        ended = time.monotonic()
        self._timer.loop_cpu_seconds = time.thread_time() - cpu
        return PullReport(
            self._image,
            output,
            entries,
            sum(index.size for index in indexes),
            self._blobs.cached,
            built - started,
            merged - built,
            ended - merged,
            {str(stage): taken for stage, taken in self._timer.stages().items()},
            self._find_bottleneck(built - started, ended - started),
            tuple(self._runtime_layer.warnings),
        )

    async def _choose_builder(self) -> LayerBuilder:
        distributed = await self._distribute(self._blobs.by_size) if self._distribute else None
        return distributed or LocalBuilder(self._sink, self._context.files, self._blobs.read_file)

    def _merge(self, indexes: list[LayerIndex]) -> Tree:
        if sum(map(len, indexes)) > _MANY_ENTRIES:
            give_back_freed_memory()
        with self._timer.image.timed(Stage.MERGE):
            return merge(indexes)

    async def _add_runtime_layer(self, tree: Tree, builder: LayerBuilder) -> None:
        await self._runtime_layer.plan(tree, builder.read_file)
        for warning in self._runtime_layer.warnings:
            self._context.on_event(Warned(self._image.source, warning))
        await self._in_files(self._runtime_layer.apply, tree, self._sink)

    def _find_bottleneck(self, layers_seconds: float, seconds: float) -> Bottleneck | None:
        return find_bottleneck(
            self._timer.stages(),
            self._timer.waits(),
            layers_seconds=layers_seconds,
            seconds=seconds,
            cores=available_cores(),
        )

    async def _build_layers(self, builder: LayerBuilder, predicted: Tree | None) -> list[LayerIndex]:
        """Build all layers concurrently, the largest first; write only what a predicted tree needs."""
        layers = self._image.layers
        wanted = await self._in_files(predicted.wanted) if predicted else [None] * len(layers)
        known = predicted.indexes if predicted else [None] * len(layers)
        quota = Quota(self._context.limits, await self._in_files(self._sink.room))

        async def build(number: int, rank: int) -> LayerIndex:
            unpack = partial(self._unpack_layer, number, rank, wanted[number], quota, known[number])
            return await builder.build(number, quota, unpack)

        async with self._blobs.progress(), task_group() as group:
            tasks = {number: group.create_task(build(number, rank)) for rank, number in enumerate(self._blobs.by_size)}
        return [tasks[number].result() for number in range(len(layers))]

    async def _unpack_layer(
        self, number: int, rank: int, wanted: bytearray | None, quota: Quota, known: LayerIndex | None
    ) -> LayerIndex:
        """Unpack a layer; return the known index if the layer's is equal, so that memory holds it once."""

        def unpack(layer: LayerPipeline, blob: Blob) -> LayerIndex:
            return layer.unpack(blob, self._sink, rank, wanted, quota)

        index = await self._blobs.use(number, rank, unpack)
        if known is not None and index.columns == known.columns:
            return known
        await self._in_files(self._context.store.indexes.write, index.blob, index.to_bytes())
        return index

    def _predict_tree(self) -> Tree | None:
        """Return the tree if the cache has the indexes of all layers: it shows what need not be written."""
        found = []
        for layer in self._image.layers:
            content = self._context.store.indexes.read(layer.blob.digest)
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
            return None  # the pull reports the error after it has verified the layers

    def _warn(self, tree: Tree, output: SinkReport) -> None:
        source, on_event = self._image.source, self._context.on_event
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
        return await in_thread(self._context.files, function, *args)
