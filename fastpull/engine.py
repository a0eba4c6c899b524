"""The engine: the one place where source, cache, layers and sink meet.

::

    one task per layer:   open blob ─> turn ─> unpack on a thread ─> accept blob, keep index
    all layers are in:    merge ─> what runtimes want on top ─> sink.commit ─> published
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fastpull.bottleneck import find_bottleneck
from fastpull.config import available_cores
from fastpull.dressing import Dressing
from fastpull.errors import DigestMismatch, FastpullError, LayerError, LimitExceeded, LockLost, SizeMismatch
from fastpull.layers.index import LayerIndex
from fastpull.layers.merge import merge
from fastpull.layers.quota import Quota
from fastpull.meter import Meter, waiting
from fastpull.progress import Committing, LayerDone, LayerProgress, OnEvent, Warned
from fastpull.tasks import Passage, Turns, give_back_freed_memory, in_thread, repeating, task_group
from fastpull.trace import Stage, Wait
from fastpull.unpack import LayerWork

if TYPE_CHECKING:
    from fastpull.bottleneck import Bottleneck
    from fastpull.cache.store import Store
    from fastpull.config import Limits
    from fastpull.layers.tree import Origin, Tree
    from fastpull.layers.windows import Windows
    from fastpull.meter import StageTime
    from fastpull.oci.image import Image
    from fastpull.runtimes.base import Dialect
    from fastpull.sharing import SharedBuild
    from fastpull.sinks.base import Sink, SinkReport
    from fastpull.sources.base import Blob, Source

T = TypeVar("T")

_MANY_ENTRIES = 200_000
"""From so many on, what the scanners' threads have freed is worth having again: of a million entries 105 MiB."""
TICK_SECONDS = 0.1
"""Between two events on the progress of the same thing."""
_PATIENCE_SECONDS = 0.5
"""How long layers wait for a larger one to be opened: it takes milliseconds, unless somebody else is downloading it."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all pulls of a client share.

    Attributes:
        store: the cache.
        files: for blocking calls on files, which do not wait for bytes to come.
        workers: for layers, one thread each.
        helpers: for what the layers' threads need not do themselves; nothing there waits for anything. None where there
            are no cores to spare.
        turns: as many as there are workers.
        windows: memory for what inflaters keep.
        on_event: told what happens.
        limits: how much each image may take.
    """

    store: Store
    files: Executor
    workers: Executor
    helpers: Executor | None
    turns: Turns
    windows: Windows
    on_event: OnEvent
    limits: Limits


@dataclass(frozen=True, slots=True)
class PullReport:
    """What a pull did.

    Attributes:
        image: that was pulled.
        output: what the sink made.
        entries: of all layers.
        unpacked: uncompressed bytes of all layers.
        cached_layers: of which nothing was downloaded.
        layers_seconds: until all layers were unpacked and verified.
        merge_seconds, commit_seconds: of what came after.
        stages: what each stage took, by its name.
        bottleneck: the stage that most time went to; None if there is none to be named.
        warnings: what the runtimes that the output is for will not do as the image says.
        was_finished: the cache had the output already, and nothing was unpacked.
        was_there: the output was there already, and nothing was done; `entries` and `unpacked` are 0.
    """

    image: Image
    output: SinkReport
    entries: int
    unpacked: int
    cached_layers: int
    layers_seconds: float
    merge_seconds: float
    commit_seconds: float
    stages: dict[str, StageTime]
    bottleneck: Bottleneck | None
    warnings: tuple[str, ...] = ()
    was_finished: bool = False
    was_there: bool = False

    @classmethod
    def of_finished(cls, image: Image, output: SinkReport, seconds: float, facts: Mapping[str, Any]) -> Self:
        """Of a pull that took a finished image out of the cache.

        Args:
            image: that was asked for.
            output: what the sink made of the finished image.
            seconds: that it took.
            facts: of the making, as the cache has them.
        """
        entries, unpacked = facts.get("entries", 0), facts.get("unpacked", 0)
        warnings = tuple(facts.get("warnings", ()))
        layers = len(image.layers)
        return cls(image, output, entries, unpacked, layers, 0, 0, seconds, {}, None, warnings, was_finished=True)

    @classmethod
    def of_unchanged(cls, image: Image, output: SinkReport) -> Self:
        """Of a pull that found its output where it was to be made."""
        return cls(image, output, 0, 0, 0, 0, 0, 0, {}, None, was_there=True)

    @property
    def seconds(self) -> float:
        """From the resolved image to the published output."""
        return self.layers_seconds + self.merge_seconds + self.commit_seconds


async def _alone(_: Sequence[int]) -> SharedBuild | None:
    return None


class Pull:
    """One image on its way into one sink.

    Args:
        image: with its layers.
        source: that gives the blobs.
        sink: begun already.
        workshop: to work in.
        meter: counts where the time goes.
        dialects: of the runtimes that the output is for.
        share: finds out whether the work is shared with other nodes; gets the numbers of the layers, the largest first.

    Raises:
        MalformedDocument: the image's config says something that a runtime cannot be told.
    """

    def __init__(
        self,
        image: Image,
        source: Source,
        sink: Sink,
        workshop: Workshop,
        meter: Meter,
        dialects: Sequence[Dialect] = (),
        share: Callable[[Sequence[int]], Awaitable[SharedBuild | None]] = _alone,
    ) -> None:
        self._image = image
        self._dressing = Dressing(image, dialects)
        self._sink = sink
        self._workshop = workshop
        self._meter = meter
        self._share = share
        self._blobs = _Blobs(image, source, workshop, meter)
        self._shared: SharedBuild | None = None

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

        def unpack(work: LayerWork, blob: Blob) -> LayerIndex:
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


async def warm_image(image: Image, source: Source, workshop: Workshop, rank: int) -> None:
    """Brings the layers of an image into the cache, verified.

    Args:
        image: with its layers.
        source: that gives the blobs.
        workshop: to work in.
        rank: of several images at once the lowest gets its connections first.
    """
    blobs = _Blobs(image, source, workshop, Meter())
    async with blobs.progress(), task_group() as group:
        for number in blobs.by_size:
            group.create_task(blobs.use(number, rank, LayerWork.verify))


class _Blobs:
    """The blobs of an image's layers: opened, worked on when it is their turn, and accepted or rejected.

    Attributes:
        by_size: the numbers of the layers, the largest first, as they are to be used: the work ends earliest then.
        cached: how many of them the cache had.
    """

    def __init__(self, image: Image, source: Source, workshop: Workshop, meter: Meter) -> None:
        self._image = image
        self._source = source
        self._workshop = workshop
        self._open: dict[int, tuple[LayerWork, Blob]] = {}
        self._told: dict[int, tuple[int, int, int]] = {}
        self._parts = [meter.layer(number, self._title(number)) for number in range(len(image.layers))]
        self._passage = Passage(_PATIENCE_SECONDS)
        self.by_size = sorted(range(len(image.layers)), key=lambda number: -image.layers[number].blob.size)
        self.cached = 0

    async def use(self, number: int, rank: int, work_on: Callable[[LayerWork, Blob], T]) -> T:
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
            work = LayerWork(layer, number, subject, self._workshop.helpers, self._workshop.windows, part)
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
        number, entry = origin >> 32, origin & 0xFFFFFFFF
        layer, part = self._image.layers[number], self._parts[number]
        subject = f"{layer.blob.digest} of {self._image.source}"
        work = LayerWork(layer, number, subject, None, self._workshop.windows, part)

        def extract(work: LayerWork, blob: Blob) -> bytes:
            return work.extract(blob, entry, size, self._workshop.limits)

        async with self._source.open_blob(layer.blob, number, part) as blob:
            return await self._on_thread(work, number, extract, blob)

    async def _on_thread(self, work: LayerWork, rank: int, work_on: Callable[[LayerWork, Blob], T], blob: Blob) -> T:
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

    def _tell(self, work: LayerWork, blob: Blob) -> None:
        state = (work.read, work.unpacked, blob.present)
        if self._told.get(work.number) != state:
            self._told[work.number] = state
            layer = work.layer.blob
            self._workshop.on_event(LayerProgress(self._image.source, layer.digest, layer.size, *state))
