"""The exchange of one image's blobs: who has what, who brings what, and windows down the line.

::

    every rank:  hold ─> plan ─> [ask ─> lease ─> fetch or read ─> windows ─> brought] … ─> none left
    the root:    all have said what they hold ─> plan;  a rank drops out ─> the next round, from ``hold`` on

Where the ranks make something of the layers together, the plan says as well who makes what; see
`fastpull.cluster.build.member`. A blob goes only to the rank that needs it then.

A round is one plan. Windows of an earlier one are dropped: what they held is in nobody's ``hold``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from itertools import compress
from typing import TYPE_CHECKING, Any

from fastpull.cluster.blobs.local_blob import LocalBlob, RangeTarget
from fastpull.cluster.blobs.plan import Holding, cut, from_bits, next_ranks, receivers, to_bits
from fastpull.cluster.build.builders import MemberState
from fastpull.cluster.control.channel import ROOT
from fastpull.cluster.transport.fabric import HEADER_SIZE
from fastpull.cluster.transport.frame import Frame, FrameKind
from fastpull.cluster.transport.send_queue import SendRequest
from fastpull.concurrency.threads import in_thread, task_group
from fastpull.errors import FastpullError, FrameDamaged
from fastpull.registry.download.download import RangesIgnored

if TYPE_CHECKING:
    from fastpull.cluster.blobs.plan import Chunk
    from fastpull.cluster.build.member import BuildMember
    from fastpull.cluster.control.channel import ControlChannel
    from fastpull.cluster.transport.sender import Sender

_LEASES = 2
"""Stretches that a rank brings at a time: while the end of one is sent the next one comes."""


class Exchange:
    """One rank's part.

    Args:
        number: of the image within the job.
        shelves: of its blobs; closed at the end.
        ranks: for how many the blobs are cut, the same on all.
        council: of the job.
        post: for what is sent.
        executor: for blocking calls on files.
        on_error: told, once, why this rank can do no more for the image.
        wants: what is missing on the shelves is to come.
        building: what this rank makes with others of the blobs; of those it gets then only what it needs for that.
        find_room: has a shelf of which nothing is known filled, for a blob that is to come.
        fetch: gets what a target lacks of a blob from the registry; the last argument says whether that is all of it.

    Attributes:
        fetched, received: bytes of blobs so far.
    """

    def __init__(
        self,
        number: int,
        shelves: Sequence[LocalBlob],
        ranks: int,
        council: ControlChannel,
        post: Sender,
        executor: Executor,
        on_error: Callable[[FastpullError], None],
        *,
        wants: bool,
        building: BuildMember | None = None,
        find_room: Callable[[LocalBlob], Awaitable[None]],
        fetch: Callable[[int, RangeTarget, bool], Awaitable[None]],
    ) -> None:
        self._number = number
        self._shelves = shelves
        self._wants = wants
        self._building = building
        self._find_room = find_room
        self._fetch_blob = fetch
        self._post = post
        self._council = council
        self._executor = executor
        self._on_error = on_error
        self._stretches = cut([shelf.descriptor.size for shelf in shelves], ranks)
        self._loop = asyncio.get_running_loop()
        self._round = -1
        self._held: dict[int, Holding] = {}
        self._plan: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._planned = asyncio.Event()
        self._arriving = 0
        self._leases: asyncio.Queue[int | None] = asyncio.Queue()
        self._given: dict[int, asyncio.Future[bool]] = {}
        self._running: asyncio.Task[None] | None = None
        self._ended = set[asyncio.Task[None]]()
        self._is_closed = False
        self.fetched = self.received = 0
        self._begin(0)
        for word, handler in (
            ("plan", self._on_plan),
            ("again", self._on_again),
            ("lease", self._on_lease),
            ("given", self._on_given),
        ):
            council.on(f"{number}.{word}", handler)  # may begin a later round, of which the root has told before

    @property
    def total(self) -> int:
        """How many bytes of all blobs are there."""
        return sum(shelf.amount for shelf in self._shelves)

    def fail(self, error: FastpullError) -> None:
        """Whoever reads a blob that is coming gets an error."""
        for shelf in self._shelves:
            if shelf.partial is not None:
                shelf.partial.fail(error)

    async def close(self) -> None:
        """Ends it on this rank; what came stays in the cache for the next time."""
        self._is_closed = True
        self._planned.set()
        tasks = [task for task in (self._running, *self._ended) if task is not None]
        for task in tasks:
            task.cancel()
        self._post.close()
        if tasks:
            await asyncio.wait(tasks)
        while self._arriving:  # noqa: ASYNC110  # writes of a moment
            await asyncio.sleep(0.005)
        for shelf in self._shelves:
            await in_thread(self._executor, shelf.close)
        if self._building is not None:
            await in_thread(self._executor, self._building.close)

    # --- rounds

    def _begin(self, number: int) -> None:
        self._round = number
        self._planned.set()  # who waits for the plan of the last round sees that it is over
        self._planned = asyncio.Event()
        self._plan = self._loop.create_future()
        self._leases, self._given = asyncio.Queue(), {}
        before = self._running
        if before is not None:
            before.cancel()
            self._ended.add(before)
            before.add_done_callback(self._ended.discard)
        self._post.begin(number)
        self._held = {}  # what comes late of the last round is in what we say that we hold
        self._running = self._loop.create_task(self._run_round(number, before))

    async def _run_round(self, number: int, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait({before})
            while self._arriving:  # noqa: ASYNC110  # what is being written is to be in what we say that we hold
                await asyncio.sleep(0.005)
            has = await in_thread(self._executor, self._look)
            products = None if self._building is None else to_bits(self._building.has)
            hold = {"round": number, "has": to_bits(has), "wants": self._wants, "products": products}
            self._council.post(ROOT, f"{self._number}.hold", hold)
            await self._follow(await self._plan)
            async with task_group() as group:
                for _ in range(_LEASES):
                    group.create_task(self._work(number))
        except FastpullError as error:
            self._fail(error)

    async def _follow(self, plan: dict[str, Any]) -> None:
        count, blobs = len(self._stretches), len(self._shelves)
        held = {
            int(rank): Holding(from_bits(has, count), frozenset(compress(range(blobs), from_bits(wants, blobs))))
            for rank, (has, wants) in plan["held"].items()
        }
        mine = held[self._council.rank].wants
        for number, shelf in enumerate(self._shelves):
            if number in mine and shelf.is_empty:
                await self._find_room(shelf)
        self._held = held
        if self._building is not None:
            products = {int(rank): from_bits(has, len(plan["sources"])) for rank, has in plan["products"].items()}
            makers = {rank: MemberState(frozenset(), has) for rank, has in products.items()}
            self._building.plan(self._round, plan["sources"], makers)
        self._planned.set()

    def _look(self) -> list[bool]:
        return [self._shelves[one.blob].has(one.start, one.stop) for one in self._stretches]

    def _fail(self, error: FastpullError) -> None:
        if not self._is_closed:
            self._on_error(error)

    def _on_again(self, _: int, value: dict[str, Any]) -> None:
        if not self._is_closed and value["round"] > self._round:
            self._begin(value["round"])

    def _on_plan(self, _: int, value: dict[str, Any]) -> None:
        if value["round"] == self._round and not self._plan.done():
            self._plan.set_result(value)

    def _on_lease(self, _: int, value: dict[str, Any]) -> None:
        if value["round"] == self._round:
            self._leases.put_nowait(value["stretch"])

    def _on_given(self, _: int, value: dict[str, Any]) -> None:
        answer = self._given.get(value["blob"])
        if value["round"] == self._round and answer is not None and not answer.done():
            answer.set_result(value["is_given"])

    # --- bringing

    async def _work(self, round_: int) -> None:
        while True:
            self._council.post(ROOT, f"{self._number}.ask", {"round": round_})
            number = await self._leases.get()
            if number is None:
                return
            for brought in await self._bring(self._stretches[number]):
                await self._post.has_left((FrameKind.BLOB, brought.blob, brought.number, brought.number))
                self._council.post(ROOT, f"{self._number}.brought", {"round": round_, "stretch": brought.number})

    async def _bring(self, stretch: Chunk) -> Sequence[Chunk]:
        """Fetches or reads a stretch, and has it sent; returns what is on its way then."""
        shelf = self._shelves[stretch.blob]
        try:
            await self._have(shelf, stretch)
        except RangesIgnored:
            if not await self._is_given(stretch.blob):
                return (stretch,)  # another rank brings all of the blob, this stretch as well
            stretches = [one for one in self._stretches if one.blob == stretch.blob]
            await self._have(shelf, *stretches)
            return stretches
        return (stretch,)

    async def _have(self, shelf: LocalBlob, *stretches: Chunk) -> None:
        """Passes on what is there of some stretches of a blob, and fetches the rest."""
        start, stop = stretches[0].start, stretches[-1].stop
        for low, high in shelf.there(start, stop):
            self._pass_on_parts(stretches, low, high)
        if shelf.has(start, stop):
            return

        def on_written(low: int, high: int) -> None:
            self._loop.call_soon_threadsafe(self._on_fetched, stretches, low, high)

        is_all = (start, stop) == (0, shelf.descriptor.size)
        await self._fetch_blob(stretches[0].blob, RangeTarget(shelf, start, stop, on_written), is_all)
        await asyncio.sleep(0)  # what has been written last is passed on before we look

    async def _is_given(self, blob: int) -> bool:
        """Asks for all of a blob, whose host gives no parts; says whether this rank gets it."""
        if blob not in self._given:
            self._given[blob] = self._loop.create_future()
            self._council.post(ROOT, f"{self._number}.whole", {"round": self._round, "blob": blob})
            return await self._given[blob]
        return False  # asked for already, for another stretch

    def _on_fetched(self, stretches: Sequence[Chunk], start: int, stop: int) -> None:
        self.fetched += stop - start
        self._pass_on_parts(stretches, start, stop)

    def _pass_on_parts(self, stretches: Sequence[Chunk], start: int, stop: int) -> None:
        for one in stretches:
            if one.start < stop and start < one.stop:
                self._pass_on(one, self._council.rank, max(start, one.start), min(stop, one.stop))

    def _pass_on(self, stretch: Chunk, origin: int, start: int, stop: int) -> None:
        """Has a range sent to those who come next."""
        wanting, fan_out = receivers(self._held, stretch), self._council.terms.fan_out
        ranks = next_ranks(self._council.rank, origin, wanting, stretch.number, fan_out)
        shelf, number = self._shelves[stretch.blob], stretch.number
        self._post.put(ranks, SendRequest(shelf, FrameKind.BLOB, stretch.blob, number, number, origin, start, stop))

    # --- receiving

    async def receive(self, sender: int, window: Frame, memory: memoryview) -> None:
        """Takes a window in, and passes it on.

        Args:
            sender: that sent it.
            window: its header.
            memory: header and bytes.
        """
        if window.round > self._round:
            return  # this rank was dropped, or has been told so a moment later
        await self._planned.wait()
        if self._is_closed or window.round != self._round:
            return
        self._arriving += 1
        try:
            await in_thread(self._executor, self._check, sender, window, memory)
            if window.kind is FrameKind.BLOB:
                await self._receive_blob(window, memory[HEADER_SIZE:])
            elif self._building is not None:
                await self._building.receive(window, memory[HEADER_SIZE:])
        except FastpullError as error:
            self._fail(error)
        finally:
            self._arriving -= 1

    def _check(self, sender: int, window: Frame, memory: memoryview) -> None:
        if not window.is_sound(memory):
            raise FrameDamaged(self._council.name(sender), window.offset, window.size)

    async def _receive_blob(self, window: Frame, content: memoryview) -> None:
        shelf = self._shelves[window.item]
        new = await in_thread(self._executor, shelf.put, window.offset, [content])
        self.received += sum(stop - start for start, stop in new)
        shelf.origins.add(window.origin)
        self._pass_on(self._stretches[window.part], window.origin, window.offset, window.offset + window.size)
