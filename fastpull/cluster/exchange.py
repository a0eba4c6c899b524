"""The exchange of one image's blobs: who has what, who brings what, and windows down the line.

::

    every rank:  hold ─> plan ─> [ask ─> lease ─> fetch or read ─> windows ─> brought] … ─> none left
    the root:    all have said what they hold ─> plan;  a rank drops out ─> the next round, from ``hold`` on

A round is one plan. Windows of an earlier one are dropped: what they held is in nobody's ``hold``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from fastpull.cluster.council import ROOT, Council
from fastpull.cluster.fabric import HEADER_SIZE, WINDOW_SIZE
from fastpull.cluster.outbox import Letter, Outbox
from fastpull.cluster.plan import Holding, Plan, cut, from_bits, next_ranks, receivers, to_bits
from fastpull.cluster.shelf import Shelf, Tap
from fastpull.cluster.window import Window
from fastpull.errors import FastpullError, WindowDamaged
from fastpull.registry.download import RangesIgnored
from fastpull.tasks import in_thread, task_group

if TYPE_CHECKING:
    from fastpull.cluster.plan import Stretch

_LEASES = 2
"""Stretches that a rank brings at a time: while the end of one is sent the next one comes."""
SEND_BUFFERS = 4


class Chair:
    """The root's part: it makes the plan and grants leases.

    Args:
        number: of the image within the job.
        sizes: of its blobs, in bytes.
        ranks: for how many the blobs are cut, the same on all.
        members: the ranks that take part.
        council: of the job.
    """

    def __init__(self, number: int, sizes: Sequence[int], ranks: int, members: Sequence[int], council: Council) -> None:
        self._number = number
        self._council = council
        self.members = list(members)
        self.stretches = cut(sizes, ranks)
        self._round = 0
        self._held: dict[int, Holding] = {}
        self._plan: Plan | None = None
        self._stack = ExitStack()
        for word, handler in (
            ("hold", self._on_hold),
            ("ask", self._on_ask),
            ("brought", self._on_brought),
            ("whole", self._on_whole),
        ):
            council.on(f"{number}.{word}", handler)
        doing = f"image {number + 1} was exchanged"
        self._stack.enter_context(council.expecting(self._debtors, doing))

    def drop(self, rank: int) -> None:
        """Goes on without a rank, in a new round."""
        if rank in self.members:
            self.members.remove(rank)
            self._round += 1
            self._held, self._plan = {}, None
            self._council.post_all(self.members, f"{self._number}.again", {"round": self._round})

    def close(self) -> None:
        """Nothing is waited for any more."""
        self._stack.close()

    def _on_hold(self, rank: int, value: dict[str, Any]) -> None:
        if rank not in self.members or value["round"] != self._round:
            return
        self._held[rank] = Holding(from_bits(value["has"], len(self.stretches)), value["wants"])
        if len(self._held) < len(self.members):
            return
        self._plan = Plan(self.stretches, self._held)
        held = {str(one): [to_bits(holding.has), holding.wants] for one, holding in self._held.items()}
        self._council.post_all(self.members, f"{self._number}.plan", {"round": self._round, "held": held})

    def _on_ask(self, rank: int, value: dict[str, Any]) -> None:
        if self._plan is not None and rank in self.members and value["round"] == self._round:
            stretch = self._plan.take(rank)
            self._council.post(rank, f"{self._number}.lease", {"round": self._round, "stretch": stretch})

    def _on_brought(self, _: int, value: dict[str, Any]) -> None:
        if self._plan is not None and value["round"] == self._round:
            self._plan.bring(value["stretch"])

    def _on_whole(self, rank: int, value: dict[str, Any]) -> None:
        if self._plan is not None and rank in self.members and value["round"] == self._round:
            is_given = self._plan.take_whole(value["blob"], rank)
            self._council.post(rank, f"{self._number}.given", {**value, "is_given": is_given})

    def _debtors(self) -> Iterable[int]:
        if self._plan is None:
            return [rank for rank in self.members if rank not in self._held]
        return self._plan.debtors()


class Exchange:
    """One rank's part.

    Args:
        number: of the image within the job.
        shelves: of its blobs; closed at the end.
        ranks: for how many the blobs are cut, the same on all.
        wants: what is missing on the shelves is to come.
        fetch: gets what a target lacks of a blob from the registry; the last argument says whether that is all of it.
        council: of the job.
        executor: for blocking calls on files.
        on_error: told, once, why this rank can do no more for the image.

    Attributes:
        fetched, received, sent: bytes of blobs so far.
    """

    def __init__(
        self,
        number: int,
        shelves: Sequence[Shelf],
        ranks: int,
        *,
        wants: bool,
        fetch: Callable[[int, Tap, bool], Awaitable[None]],
        council: Council,
        executor: Executor,
        on_error: Callable[[FastpullError], None],
    ) -> None:
        self._number = number
        self._shelves = shelves
        self._wants = wants
        self._fetch_blob = fetch
        self._council = council
        self._executor = executor
        self._on_error = on_error
        self._stretches = cut([shelf.descriptor.size for shelf in shelves], ranks)
        self._loop = asyncio.get_running_loop()
        self._round = -1
        self._held: dict[int, Holding] = {}
        self._planned = asyncio.Event()
        self._arriving = 0
        self._leases: asyncio.Queue[int | None] = asyncio.Queue()
        self._given: dict[int, asyncio.Future[bool]] = {}
        self._outboxes: dict[int, Outbox] = {}
        self._buffers: asyncio.Queue[bytearray] = asyncio.Queue()
        for _ in range(SEND_BUFFERS):
            self._buffers.put_nowait(bytearray(HEADER_SIZE + WINDOW_SIZE))
        self._running: asyncio.Task[None] | None = None
        self._ended = set[asyncio.Task[None]]()
        self._is_closed = False
        self.fetched = self.received = self.sent = 0
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
        return sum(shelf.total for shelf in self._shelves)

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
        for outbox in self._outboxes.values():
            outbox.close()
        if tasks:
            await asyncio.wait(tasks)
        while self._arriving:  # noqa: ASYNC110  # writes of a moment
            await asyncio.sleep(0.005)
        for shelf in self._shelves:
            await in_thread(self._executor, shelf.close)

    # --- rounds

    def _begin(self, number: int) -> None:
        self._round = number
        self._planned.set()  # who waits for the plan of the last round sees that it is over
        self._planned = asyncio.Event()
        self._leases, self._given = asyncio.Queue(), {}
        before = self._running
        if before is not None:
            before.cancel()
            self._ended.add(before)
            before.add_done_callback(self._ended.discard)
        for outbox in self._outboxes.values():
            outbox.close()
        self._outboxes, self._held = {}, {}  # what comes late of the last round is in what we say that we hold
        self._running = self._loop.create_task(self._run_round(number, before))

    async def _run_round(self, number: int, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait({before})
            while self._arriving:  # noqa: ASYNC110  # what is being written is to be in what we say that we hold
                await asyncio.sleep(0.005)
            has = await in_thread(self._executor, self._look)
            hold = {"round": number, "has": to_bits(has), "wants": self._wants}
            self._council.post(ROOT, f"{self._number}.hold", hold)
            await self._planned.wait()
            async with task_group() as group:
                for _ in range(_LEASES):
                    group.create_task(self._work(number))
        except FastpullError as error:
            self._fail(error)

    def _look(self) -> list[bool]:
        return [self._shelves[one.blob].has(one.start, one.stop) for one in self._stretches]

    def _fail(self, error: FastpullError) -> None:
        if not self._is_closed:
            self._on_error(error)

    def _on_again(self, _: int, value: dict[str, Any]) -> None:
        if not self._is_closed and value["round"] > self._round:
            self._begin(value["round"])

    def _on_plan(self, _: int, value: dict[str, Any]) -> None:
        if value["round"] == self._round:
            count = len(self._stretches)
            self._held = {
                int(rank): Holding(from_bits(has, count), wants) for rank, (has, wants) in value["held"].items()
            }
            self._planned.set()

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
                for outbox in list(self._outboxes.values()):
                    await outbox.sent(brought.number)
                self._council.post(ROOT, f"{self._number}.brought", {"round": round_, "stretch": brought.number})

    async def _bring(self, stretch: Stretch) -> Sequence[Stretch]:
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

    async def _have(self, shelf: Shelf, *stretches: Stretch) -> None:
        """Passes on what is there of some stretches of a blob, and fetches the rest."""
        start, stop = stretches[0].start, stretches[-1].stop
        for low, high in shelf.there(start, stop):
            self._pass_on_parts(stretches, low, high)
        if shelf.has(start, stop):
            return

        def on_written(low: int, high: int) -> None:
            self._loop.call_soon_threadsafe(self._on_fetched, stretches, low, high)

        is_all = (start, stop) == (0, shelf.descriptor.size)
        await self._fetch_blob(stretches[0].blob, Tap(shelf, start, stop, on_written), is_all)
        await asyncio.sleep(0)  # what has been written last is passed on before we look

    async def _is_given(self, blob: int) -> bool:
        """Asks for all of a blob, whose host gives no parts; says whether this rank gets it."""
        if blob not in self._given:
            self._given[blob] = self._loop.create_future()
            self._council.post(ROOT, f"{self._number}.whole", {"round": self._round, "blob": blob})
            return await self._given[blob]
        return False  # asked for already, for another stretch

    def _on_fetched(self, stretches: Sequence[Stretch], start: int, stop: int) -> None:
        self.fetched += stop - start
        self._pass_on_parts(stretches, start, stop)

    def _pass_on_parts(self, stretches: Sequence[Stretch], start: int, stop: int) -> None:
        for one in stretches:
            if one.start < stop and start < one.stop:
                self._pass_on(one, self._council.rank, max(start, one.start), min(stop, one.stop))

    def _pass_on(self, stretch: Stretch, origin: int, start: int, stop: int) -> None:
        """Has a range sent to those who come next."""
        if self._is_closed:
            return
        wanting, fan_out = receivers(self._held, stretch.number), self._council.terms.fan_out
        for to in next_ranks(self._council.rank, origin, wanting, stretch.number, fan_out):
            outbox = self._outboxes.get(to)
            if outbox is None:
                outbox = self._outboxes[to] = Outbox(partial(self._send, to), self._fail)
            outbox.put(Letter(stretch, origin, start, stop))

    async def _send(self, to: int, letter: Letter) -> None:
        buffer = await self._buffers.get()
        is_ours = True  # while MPI does not have it
        try:
            size = letter.stop - letter.start
            stretch = letter.stretch
            window = Window(self._number, self._round, stretch.blob, stretch.number, letter.origin, letter.start, size)
            packed = await in_thread(self._executor, self._pack, window, buffer)
            is_ours = False
            await self._council.fabric.send(to, packed)
            is_ours = True
            self.sent += size
        finally:
            # nobody may write into what is still to be sent to somebody who is not there
            self._buffers.put_nowait(buffer if is_ours else bytearray(HEADER_SIZE + WINDOW_SIZE))

    def _pack(self, window: Window, buffer: bytearray) -> memoryview:
        memory = memoryview(buffer)
        self._shelves[window.blob].read(memory[HEADER_SIZE : HEADER_SIZE + window.size], window.offset)
        return window.seal(memory)

    # --- receiving

    async def receive(self, sender: int, window: Window, memory: memoryview) -> None:
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
            new = await in_thread(self._executor, self._unpack, sender, window, memory)
            self.received += sum(stop - start for start, stop in new)
            self._shelves[window.blob].origins.add(window.origin)
            self._pass_on(self._stretches[window.stretch], window.origin, window.offset, window.offset + window.size)
        except FastpullError as error:
            self._fail(error)
        finally:
            self._arriving -= 1

    def _unpack(self, sender: int, window: Window, memory: memoryview) -> list[tuple[int, int]]:
        if not window.is_sound(memory):
            raise WindowDamaged(self._council.name(sender), window.offset, window.size)
        return self._shelves[window.blob].put(window.offset, [memory[HEADER_SIZE:]])
