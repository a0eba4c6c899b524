"""One rank's place in a job of many nodes."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from fastpull._version import __version__
from fastpull.cache.store import Store
from fastpull.cluster.blobs.claims import Claim
from fastpull.cluster.blobs.source import ClusterSource
from fastpull.cluster.control.agreement import Hello, check_agreement, check_claims, elect
from fastpull.cluster.control.channel import ROOT, ClusterTerms, ControlChannel
from fastpull.cluster.root.image_coordinator import ImageCoordinator
from fastpull.cluster.root.image_task import ImageTask
from fastpull.cluster.transport.frame import Frame
from fastpull.errors import CacheError, FastpullError, OutputError, RankFailed, RankLost
from fastpull.telemetry.events import LayerDone, LayerProgress, NodeProgress, Warned, ignore

if TYPE_CHECKING:
    from fastpull.cluster.root.report import ClusterReport
    from fastpull.cluster.transport.fabric import Fabric
    from fastpull.oci.reference import Reference
    from fastpull.sources.blobs import SourceContext
    from fastpull.sources.registry import RegistrySource
    from fastpull.telemetry.events import Event, OnEvent

T = TypeVar("T")
_Handler = Callable[[int, dict[str, Any]], None]

_PARTING_SECONDS = 10.0  # for all to leave together, when there is nothing more to be done


class Cluster:
    """The ranks of a job that bring images to all their nodes. An async context manager; a client takes it.

    Each image that is run is resolved by rank 0, leaves the registry once, and is verified by each node itself.

    Args:
        fabric: between the ranks, such as that of `open_mpi`.
        cache: of this node: a directory of its own.
        terms: how the ranks deal with each other; the same for all.
        asked: what they were asked for; has to be the same for all.
        outputs: what this rank will make: paths that no other node has.
        each_rank: every rank is a node of its own; otherwise one of each node works, and the others wait.
        on_event: on rank 0 told what happens on all nodes.

    Attributes:
        members: the ranks that work, one for each node.

    Raises:
        Disagreement: from ``async with``: the ranks were asked for different things, or work in the same directory.
        ClusterError: likewise: ranks do not answer.
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
        self._cache = cache
        self._asked = dict(asked or {})
        self._outputs = tuple(outputs)
        self._each_rank = each_rank
        self._listener = on_event
        self._listener_error: Exception | None = None
        self._council = ControlChannel(fabric, platform.node(), terms or ClusterTerms())
        self._claims: list[Claim] = []
        self._errand: ImageTask | None = None
        self._lead: ImageCoordinator | None = None
        self._number = 0
        self._early: list[tuple[_Handler, int, dict[str, Any]]] = []
        self._told = set[tuple[str, str]]()
        self.members: list[int] = []

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, which tells what happens."""
        return self._council.is_root

    @property
    def works(self) -> bool:
        """Whether this rank is the one of its node that works."""
        return self._fabric.rank in self.members

    @property
    def is_broken(self) -> bool:
        """Whether the job cannot go on."""
        return self._council.failure is not None

    @property
    def is_orphaned(self) -> bool:
        """Whether rank 0, which would tell what happens, is lost."""
        return isinstance(self._council.failure, RankLost) and not self.is_root

    async def __aenter__(self) -> Self:
        council = self._council
        council.progress = self._progress
        council.on_progress = self._on_progress
        council.on_lost = self._on_lost
        council.on_failure = self._on_failure
        for topic, handler in (
            ("failed", partial(self._of_image, self._on_failed)),
            ("finished", partial(self._of_image, self._on_finished)),
            ("stop", partial(self._of_image, self._on_stop)),
            ("warned", self._on_warned),
            ("broken", self._on_broken),
        ):
            council.on(topic, handler)
        council.start(self._on_window)
        try:
            await self._claim(await self._agree())
        except BaseException as error:
            self._break(error)
            await self._release()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is not None:
            self._break(error)
        await self._release()

    async def idle(self) -> None:
        """Waits, on a rank that does not work, until the others have.

        Raises:
            FastpullError: the job cannot go on.
        """
        await self._council.idle()

    async def leave(self, code: int) -> tuple[int, bool]:
        """Ends the job on all ranks, and MPI.

        Args:
            code: that this rank would exit with.

        Returns:
            Rank 0's, for all to exit with; and whether all have left. If not, the process has to be ended by
            `fastpull.cluster.transport.mpi.MpiFabric.abort`.
        """
        is_whole = False
        if self.is_orphaned:
            return code, False
        with contextlib.suppress(TimeoutError, FastpullError):
            code, is_whole = await self._council.part(code)
            if is_whole:
                async with asyncio.timeout(_PARTING_SECONDS):
                    await self._fabric.leave()
        await self._council.stop()
        return code, is_whole

    # --- before the first image

    async def _agree(self) -> str:
        council = self._council
        hello = Hello(platform.node(), self._fabric.node, __version__, self._asked)
        said = await council.gather("hello", hello.to_value(), range(self._fabric.size), "the ranks came together")
        verdict: dict[str, Any] = {}
        if council.is_root:
            hellos = {rank: Hello.of(value) for rank, value in said.items()}
            council.hosts = {rank: hello.host for rank, hello in hellos.items()}
            check_agreement(hellos)
            members = elect(hellos, each_rank=self._each_rank)
            verdict = {"job": uuid.uuid4().hex, "members": members, "hosts": list(council.hosts.items())}
        verdict = await council.spread("verdict", verdict)
        council.hosts = {int(rank): host for rank, host in verdict["hosts"]}
        self.members = verdict["members"]
        return str(verdict["job"])

    async def _claim(self, job: str) -> None:
        """Makes sure that no two ranks work in the same place."""
        council = self._council
        if not self.works:
            return
        found: dict[str, dict[str, Any]] = {}
        value: dict[str, Any] = {"claims": found}
        try:
            store = await asyncio.to_thread(Store, self._cache)
            wanted: list[tuple[str, str, str, type[CacheError | OutputError]]]
            wanted = [("cache", self._cache, f"{store.root}/cache", CacheError)]
            wanted += [("output", path, path.rstrip("/"), OutputError) for path in self._outputs]
            for kind, shown, path, family in wanted:
                claim = Claim(path, job, council.rank, family)
                self._claims.append(claim)
                found[kind] = {"path": shown, "owner": await asyncio.to_thread(claim.make)}
        except FastpullError as error:
            value["error"] = error.message
        said = await council.gather("claims", value, self.members, "the ranks looked at their caches")
        if council.is_root:
            for rank, one in said.items():
                if "error" in one:
                    raise RankFailed(rank, council.hosts[rank], one["error"])
            check_claims({rank: one["claims"] for rank, one in said.items()}, council.hosts)
        await council.spread("begin", None, self.members)

    async def _release(self) -> None:
        for claim in self._claims:
            await asyncio.to_thread(claim.release)

    def _break(self, error: BaseException) -> None:
        """Ends the job on all ranks, because it cannot go on here."""
        council = self._council
        if council.failure is not None:
            return
        reason = error.message if isinstance(error, FastpullError) else "it was interrupted"
        if council.is_root:
            council.give_up(reason)
        else:
            council.post(ROOT, "broken", reason)

    # --- an image

    async def run(self, source: str, work: Callable[[], Awaitable[T]]) -> tuple[T | None, ClusterReport | None]:
        """Does this rank's part of an image, and waits for all others.

        Args:
            source: the image; the ranks call this for the same images in the same order.
            work: brings it to this node, with a client that has this cluster.

        Returns:
            What has come of the work here, nothing if it failed and the others went on; and on rank 0 what has come of
            it on all nodes.

        Raises:
            FastpullError: a node could not do its part. No node has published a wrong byte; those that were ready have
                the image.
            Exception: raised by ``on_event``.
        """
        council = self._council
        errand = self._errand = ImageTask(self._number, source, council)
        self._number += 1
        lead = self._lead = ImageCoordinator(errand, self.members, council, self._on_event) if council.is_root else None
        early, self._early = self._early, []
        for handler, rank, value in early:
            self._of_image(handler, rank, value)
        try:
            with contextlib.ExitStack() as stack:
                if lead is not None:
                    stack.enter_context(council.expecting(lead.unfinished, f"{source} was brought to all nodes"))
                result = await self._work_on(errand, work)
                if self._listener_error is not None:
                    raise self._listener_error
                if lead is not None:
                    await lead.told_or_failed()
                if errand.error is not None:
                    failure = {"reason": errand.reason, "exit_code": errand.error.exit_code}
                    council.post(ROOT, "failed", {"image": errand.number, **failure})
                follows = isinstance(errand.error, RankFailed | RankLost)  # another's failure, which is told as theirs
                finished = {"image": errand.number, "report": errand.report(), "follows": follows}
                council.post(ROOT, "finished", finished)
                if lead is not None:
                    await council.until(lambda: not lead.unfinished())
                verdict = lead.verdict() if lead is not None else None
                verdict = await council.spread(f"{errand.number}.end", verdict, self.members)
        finally:
            self._errand = self._lead = None
            if lead is not None:
                lead.close()
            await errand.close()
        if verdict is not None:
            if (
                verdict["rank"] == council.rank
                and errand.error is not None
                and verdict["reason"] == errand.error.message
            ):
                raise errand.error
            raise self._failed(verdict)
        if self._listener_error is not None:
            raise self._listener_error
        return result, lead.report() if lead is not None else None

    def source(
        self, registry: RegistrySource, reference: Reference, context: SourceContext
    ) -> ClusterSource | RegistrySource:
        """An image in a registry as the ranks get it together; outside of `run` each is for itself."""
        if self._errand is None:
            return registry
        return ClusterSource(registry, reference, context, self._errand, self.members, self._lead)

    async def _work_on(self, errand: ImageTask, work: Callable[[], Awaitable[T]]) -> T | None:
        task = asyncio.ensure_future(work())
        stopping = asyncio.ensure_future(errand.stopped.wait())
        try:
            await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            result = task.result()
            await errand.join(wants=False)
        except FastpullError as error:
            errand.fail(error)
            return None
        except asyncio.CancelledError:
            this = asyncio.current_task()
            if errand.error is None or (this is not None and this.cancelling()):
                raise  # the caller is cancelled, which ends the job also where an error is set
            return None
        finally:
            for one in (task, stopping):
                one.cancel()
            await asyncio.wait({task, stopping})
        return result

    def _failed(self, failure: dict[str, Any]) -> RankFailed:
        rank = failure["rank"]
        return RankFailed(rank, self._council.hosts.get(rank, "?"), failure["reason"], failure["exit_code"])

    # --- what others say

    async def _on_window(self, sender: int, memory: memoryview) -> None:
        errand = self._errand
        try:
            window = Frame.open(memory)
        except ValueError as error:
            if errand is not None:
                errand.fail(RankFailed(sender, self._council.hosts.get(sender, "?"), f"sent no window: {error}"))
            return
        if errand is not None and errand.number == window.image:
            await errand.receive(sender, window, memory)

    def _of_image(self, handler: _Handler, rank: int, value: dict[str, Any]) -> None:
        """Passes on what concerns the image at hand; what concerns the next one, which others began before, waits."""
        if value["image"] >= self._number:
            self._early.append((handler, rank, value))
        elif self._errand is not None and value["image"] == self._errand.number:
            handler(rank, value)

    def _on_failed(self, rank: int, value: dict[str, Any]) -> None:
        if self._lead is not None:
            self._lead.on_failed(rank, value)

    def _on_finished(self, rank: int, value: dict[str, Any]) -> None:
        if self._lead is not None:
            self._lead.on_finished(rank, value)

    def _on_stop(self, _: int, failure: dict[str, Any]) -> None:
        if self._errand is not None:
            self._errand.fail(self._failed(failure))

    def _on_warned(self, rank: int, value: dict[str, str]) -> None:
        warning = value["source"], value["message"]
        if warning not in self._told:
            self._told.add(warning)
            self._on_event(Warned(value["source"], f"{self._council.name(rank)}: {value['message']}"))

    def _on_broken(self, rank: int, reason: str) -> None:
        error = RankFailed(rank, self._council.hosts.get(rank, "?"), reason)
        self._council.give_up(error.message)
        self._council.fail(error)

    def _on_lost(self, rank: int) -> None:
        self._on_event(Warned("job", f"goes on without {self._council.name(rank)}, of which nothing was heard"))
        if self._lead is not None:
            self._lead.on_lost(rank)

    def _on_failure(self, error: FastpullError) -> None:
        if self._errand is not None:
            self._errand.fail(error)

    # --- what happens

    def _on_event(self, event: Event) -> None:
        """Pass an event to the listener; keep its first exception for `run`, since callbacks of the fabric lose it."""
        try:
            self._listener(event)
        except Exception as error:  # noqa: BLE001  # raised by `run`
            self._listener_error = self._listener_error or error

    def on_event(self, event: Event) -> None:
        """For the client: what happens on this node, of which rank 0 tells what concerns all."""
        if self._errand is not None:
            self._errand.on_event(event)
        if isinstance(event, LayerProgress | LayerDone):
            return  # the nodes are what is shown
        if self.is_root:
            if isinstance(event, Warned):
                self._told.add((event.source, event.message))
            self._on_event(event)
        elif isinstance(event, Warned):
            self._council.post(ROOT, "warned", {"source": event.source, "message": event.message})

    def _progress(self) -> dict[str, Any]:
        return self._errand.state() if self._errand is not None else {}

    def _on_progress(self, rank: int, state: dict[str, Any]) -> None:
        errand = self._errand
        if errand is not None and state.get("image") == errand.number:
            host = self._council.hosts.get(rank, "?")
            self._on_event(NodeProgress(errand.source, rank, host, sum(errand.blob_sizes), state["there"]))
