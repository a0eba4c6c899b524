"""One rank of a job on many nodes: it agrees with the others, runs images, and leaves together with them."""

from __future__ import annotations

import asyncio
import contextlib
import platform
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fastpull.cluster.blobs.source import ClusterSource
from fastpull.cluster.control.channel import ROOT, ClusterTerms, ControlChannel
from fastpull.cluster.messages import (
    Failure,
    ImageEnd,
    ImageFailed,
    ImageFinished,
    RankBroken,
    RankWarned,
    StopImage,
)
from fastpull.cluster.root.image_coordinator import ImageCoordinator
from fastpull.cluster.root.image_task import ImageTask
from fastpull.cluster.root.startup import JobStartup
from fastpull.cluster.transport.frame import Frame
from fastpull.errors import FastpullError, RankFailed, RankLost
from fastpull.telemetry.events import LayerDone, LayerProgress, NodeProgress, Warned, ignore

if TYPE_CHECKING:
    from fastpull.cluster.messages import TaskProgress
    from fastpull.cluster.root.report import ClusterReport
    from fastpull.cluster.transport.fabric import Fabric
    from fastpull.oci.reference import Reference
    from fastpull.sources.blobs import SourceContext
    from fastpull.sources.registry import RegistrySource
    from fastpull.telemetry.events import Event, OnEvent

T = TypeVar("T")
_ImageMessage = ImageFailed | ImageFinished | StopImage
_Handler = Callable[[int, Any], None]

_LEAVE_SECONDS = 10.0  # for MPI_Finalize on all ranks


class Cluster:
    """The ranks of a job that bring images to all their nodes. An async context manager, for a `fastpull.Client`.

    Rank 0 resolves each image, each byte leaves the registry once, and each node verifies the image itself.

    Args:
        fabric: the network between the ranks, such as that of `open_mpi`.
        cache: the cache of this node, which no other node shares.
        terms: the rules of the job; the same on all ranks.
        asked: the values of options that have to be equal on all ranks, by name.
        outputs: the paths that this rank will write, which no other node shares.
        each_rank: whether every rank counts as a node; otherwise one rank of each node works, and the others wait.
        on_event: receives, on rank 0, the events of all nodes.

    Attributes:
        members: the ranks that work, one for each node.

    Raises:
        Disagreement: from ``async with``: the ranks were asked for different things, or share a cache or an output.
        ClusterError: from ``async with``: a rank does not answer.
    """

    def __init__(
        self,
        fabric: Fabric,
        cache: str,
        terms: ClusterTerms | None = None,
        *,
        asked: Mapping[str, str] | None = None,
        outputs: Iterable[str] = (),
        each_rank: bool = False,
        on_event: OnEvent = ignore,
    ) -> None:
        self._fabric = fabric
        self._asked = dict(asked or {})
        self._each_rank = each_rank
        self._listener = on_event
        self._listener_error: Exception | None = None
        self._channel = ControlChannel(fabric, platform.node(), terms or ClusterTerms())
        self._startup = JobStartup(self._channel, cache, tuple(outputs))
        self._task: ImageTask | None = None
        self._coordinator: ImageCoordinator | None = None
        self._number = 0
        self._early: list[tuple[_Handler, int, _ImageMessage]] = []
        self._warnings = set[tuple[str, str]]()
        self.members: list[int] = []

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, which reports what happens."""
        return self._channel.is_root

    @property
    def works(self) -> bool:
        """Whether this rank is the one of its node that works."""
        return self._fabric.rank in self.members

    @property
    def is_broken(self) -> bool:
        """Whether the job cannot go on."""
        return self._channel.failure is not None

    @property
    def is_orphaned(self) -> bool:
        """Whether rank 0, which would report what happens, is lost."""
        return isinstance(self._channel.failure, RankLost) and not self.is_root

    async def __aenter__(self) -> Self:
        channel = self._channel
        channel.progress = self._progress
        channel.on_progress = self._on_progress
        channel.on_lost = self._on_lost
        channel.on_failure = self._on_failure
        channel.on(ImageFailed, partial(self._of_image, self._on_image_failed))
        channel.on(ImageFinished, partial(self._of_image, self._on_image_finished))
        channel.on(StopImage, partial(self._of_image, self._on_stop_image))
        channel.on(RankWarned, self._on_rank_warned)
        channel.on(RankBroken, self._on_rank_broken)
        channel.start(self._on_frame)
        try:
            start = await self._startup.agree(self._asked, each_rank=self._each_rank)
            self.members = list(start.members)
            if self.works:
                await self._startup.claim(start)
        except BaseException as error:
            self._end_job(error)
            await self._startup.release()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is not None:
            self._end_job(error)
        await self._startup.release()

    async def wait_until_done(self) -> None:
        """Wait, on a rank that does not work, until the members have done their work.

        Raises:
            FastpullError: the job cannot go on.
        """
        await self._channel.wait_until_done()

    async def leave(self, code: int) -> tuple[int, bool]:
        """End the job on all ranks, and MPI.

        Args:
            code: the exit code that this rank would end with.

        Returns:
            Rank 0's exit code, for all ranks; and whether all ranks have left. If not, end the process with
            `fastpull.cluster.transport.mpi.MpiFabric.abort`.
        """
        is_whole = False
        if self.is_orphaned:
            return code, False
        with contextlib.suppress(TimeoutError, FastpullError):
            code, is_whole = await self._channel.shut_down(code)
            if is_whole:
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await self._fabric.leave()
        await self._channel.stop()
        return code, is_whole

    def _end_job(self, error: BaseException) -> None:
        """End the job on all ranks, because it cannot go on here."""
        channel = self._channel
        if channel.failure is not None:
            return
        reason = error.message if isinstance(error, FastpullError) else "it was interrupted"
        if channel.is_root:
            channel.abort(reason)
        else:
            channel.send(ROOT, RankBroken(reason))

    # --- an image

    async def run(self, source: str, work: Callable[[], Awaitable[T]]) -> tuple[T | None, ClusterReport | None]:
        """Do this rank's part of an image, and wait for all other ranks.

        Args:
            source: the image; the ranks call this for the same images in the same order.
            work: brings the image to this node, with a client that has this cluster.

        Returns:
            The result of the work, None if it failed and the others went on; and on rank 0 the report of all nodes.

        Raises:
            FastpullError: a node could not do its part. No node has published a wrong byte; nodes that were done have
                the image.
            Exception: raised by ``on_event``.
        """
        channel = self._channel
        task = self._task = ImageTask(self._number, source, channel)
        self._number += 1
        if channel.is_root:
            self._coordinator = ImageCoordinator(task, self.members, channel, self._on_event)
        coordinator = self._coordinator
        early, self._early = self._early, []
        for handler, rank, message in early:
            self._of_image(handler, rank, message)
        try:
            with contextlib.ExitStack() as stack:
                if coordinator is not None:
                    waiting = channel.expecting(coordinator.unfinished, f"{source} was brought to all nodes")
                    stack.enter_context(waiting)
                result = await self._work_on(task, work)
                if self._listener_error is not None:
                    raise self._listener_error
                end = await self._finish(task, coordinator)
        finally:
            self._task = self._coordinator = None
            if coordinator is not None:
                coordinator.close()
            await task.close()
        if end.failure is not None:
            raise self._error_of(end.failure, task)
        if self._listener_error is not None:
            raise self._listener_error
        return result, coordinator.report() if coordinator is not None else None

    async def _work_on(self, task: ImageTask, work: Callable[[], Awaitable[T]]) -> T | None:
        """Run the work until it ends or the task fails; return its result, None after a failure of the task."""
        running = asyncio.ensure_future(work())
        stopping = asyncio.ensure_future(task.stopped.wait())
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                running.cancel()
                await asyncio.wait({running})
            result = running.result()
            await task.join(wants=False)
        except FastpullError as error:
            task.fail(error)
            return None
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if task.error is None or (this is not None and this.cancelling()):
                raise  # the caller is cancelled, which ends the job also where an error is set
            return None
        finally:
            for one in (running, stopping):
                one.cancel()
            await asyncio.wait({running, stopping})
        return result

    async def _finish(self, task: ImageTask, coordinator: ImageCoordinator | None) -> ImageEnd:
        """Report the end of this rank's part, and wait for all other ranks."""
        channel = self._channel
        if coordinator is not None:
            coordinator.send_failure_to_resolve()
        if task.error is not None:
            failure = Failure(channel.rank, task.reason, task.error.exit_code)
            channel.send(ROOT, ImageFailed(task.number, failure))
        is_consequence = isinstance(task.error, RankFailed | RankLost)
        channel.send(ROOT, ImageFinished(task.number, task.report(), is_consequence))
        if coordinator is None:
            return await channel.receive(ImageEnd, task.number)
        await channel.until(lambda: not coordinator.unfinished())
        end = ImageEnd(task.number, coordinator.verdict())
        channel.broadcast(end, [rank for rank in self.members if rank != ROOT])
        return end

    def _error_of(self, failure: Failure, task: ImageTask) -> FastpullError:
        """Return this rank's own error, or another rank's as `RankFailed`."""
        if failure.rank == self._channel.rank and task.error is not None and failure.reason == task.error.message:
            return task.error
        return self._failed(failure)

    def _failed(self, failure: Failure) -> RankFailed:
        host = self._channel.hosts.get(failure.rank, "?")
        return RankFailed(failure.rank, host, failure.reason, failure.exit_code)

    def source(
        self, registry: RegistrySource, reference: Reference, context: SourceContext
    ) -> ClusterSource | RegistrySource:
        """Return the source of an image that the ranks share; outside of `run` the registry's own."""
        if self._task is None:
            return registry
        return ClusterSource(registry, reference, context, self._task, self.members, self._coordinator)

    # --- frames and messages

    async def _on_frame(self, from_rank: int, memory: memoryview) -> None:
        task = self._task
        try:
            frame = Frame.unpack(memory)
        except ValueError as error:
            if task is not None:
                host = self._channel.hosts.get(from_rank, "?")
                task.fail(RankFailed(from_rank, host, f"sent a malformed frame: {error}"))
            return
        if task is not None and task.number == frame.image:
            await task.receive(from_rank, frame, memory)

    def _of_image(self, handler: _Handler, rank: int, message: _ImageMessage) -> None:
        """Handle messages of the current image; keep those of the next one, which other ranks may have begun."""
        if message.image >= self._number:
            self._early.append((handler, rank, message))
        elif self._task is not None and message.image == self._task.number:
            handler(rank, message)

    def _on_image_failed(self, rank: int, message: ImageFailed) -> None:
        if self._coordinator is not None:
            self._coordinator.on_failed(rank, message)

    def _on_image_finished(self, rank: int, message: ImageFinished) -> None:
        if self._coordinator is not None:
            self._coordinator.on_finished(rank, message)

    def _on_stop_image(self, _: int, message: StopImage) -> None:
        if self._task is not None:
            self._task.fail(self._failed(message.failure))

    def _on_rank_warned(self, rank: int, warning: RankWarned) -> None:
        key = warning.source, warning.text
        if key not in self._warnings:
            self._warnings.add(key)
            self._on_event(Warned(warning.source, f"{self._channel.name(rank)}: {warning.text}"))

    def _on_rank_broken(self, rank: int, message: RankBroken) -> None:
        error = RankFailed(rank, self._channel.hosts.get(rank, "?"), message.reason)
        self._channel.abort(error.message)
        self._channel.fail(error)

    def _on_lost(self, rank: int) -> None:
        self._on_event(
            Warned("job", f"goes on without {self._channel.name(rank)}, which is silent or does not advance")
        )
        if self._coordinator is not None:
            self._coordinator.on_lost(rank)

    def _on_failure(self, error: FastpullError) -> None:
        if self._task is not None:
            self._task.fail(error)

    # --- events

    def on_event(self, event: Event) -> None:
        """Take an event of this node's client. Rank 0 reports what concerns all nodes."""
        if self._task is not None:
            self._task.on_event(event)
        if isinstance(event, LayerProgress | LayerDone):
            return  # rank 0 shows the progress of nodes, not of layers
        if self.is_root:
            if isinstance(event, Warned):
                self._warnings.add((event.source, event.message))
            self._on_event(event)
        elif isinstance(event, Warned):
            self._channel.send(ROOT, RankWarned(event.source, event.message))

    def _on_event(self, event: Event) -> None:
        """Pass an event to the listener; keep its first exception for `run`, since callbacks of the fabric lose it."""
        try:
            self._listener(event)
        except Exception as error:  # noqa: BLE001  # raised by `run`
            self._listener_error = self._listener_error or error

    def _progress(self) -> TaskProgress | None:
        return self._task.progress() if self._task is not None else None

    def _on_progress(self, rank: int, progress: TaskProgress) -> None:
        task = self._task
        if task is not None and progress.image == task.number:
            host = self._channel.hosts.get(rank, "?")
            self._on_event(NodeProgress(task.source, rank, host, sum(task.blob_sizes), progress.available))
