"""The exchange of one image's blobs, as one rank takes part in it.

::

    every rank:  ChunksHeld ─> ExchangePlan ─> [ChunkRequest ─> ChunkLease ─> fetch or read ─> frames
                                                ─> ChunkDelivered] … ─> an empty lease
    rank 0:      all ChunksHeld are there ─> ExchangePlan;   a rank is dropped ─> NewRound, from ChunksHeld on

Where ranks build layers together, the plan also says which rank builds which layer, see
`fastpull.cluster.build.member`. A blob then goes to its builder only.

A round has one plan. Frames of an earlier round are dropped: no `ChunksHeld` counts their content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from itertools import compress
from typing import TYPE_CHECKING

from fastpull.cluster.blobs.local_blob import LocalBlob, RangeTarget
from fastpull.cluster.blobs.plan import Holding, cut, next_ranks, receivers
from fastpull.cluster.build.builders import MemberState
from fastpull.cluster.control.channel import ROOT
from fastpull.cluster.messages import (
    BlobLease,
    BlobRequest,
    ChunkDelivered,
    ChunkLease,
    ChunkRequest,
    ChunksHeld,
    ExchangePlan,
    NewRound,
)
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
"""Leases of a rank at a time: the next chunk is fetched while the end of the last one is sent."""


class Exchange:
    """One rank's part in the exchange of an image.

    Args:
        image: the number of the image within the job.
        blobs: the image's blobs on this rank; closed at the end.
        ranks: the number of ranks for which the blobs are cut, the same on all ranks.
        channel: the control channel of the job.
        sender: sends frames of this image.
        executor: runs blocking calls on files.
        on_error: receives, once, the error that stops this rank's work on the image.
        wants: whether this rank needs the blobs that it lacks.
        build_member: this rank's part in building layers; None if it builds none with others. With it, the rank gets
            only the blobs that it needs to build.
        allocate: allocates a file for a blob that will arrive.
        fetch: fetches the missing ranges of a target from the registry; the last argument says whether the target is
            the whole blob.

    Attributes:
        fetched, received: the number of bytes of blobs fetched from the registry, and received from other ranks.
    """

    def __init__(
        self,
        image: int,
        blobs: Sequence[LocalBlob],
        ranks: int,
        channel: ControlChannel,
        sender: Sender,
        executor: Executor,
        on_error: Callable[[FastpullError], None],
        *,
        wants: bool,
        build_member: BuildMember | None = None,
        allocate: Callable[[LocalBlob], Awaitable[None]],
        fetch: Callable[[int, RangeTarget, bool], Awaitable[None]],
    ) -> None:
        self._image = image
        self._blobs = blobs
        self._wants = wants
        self._build_member = build_member
        self._allocate = allocate
        self._fetch_blob = fetch
        self._sender = sender
        self._channel = channel
        self._executor = executor
        self._on_error = on_error
        self._chunks = cut([blob.descriptor.size for blob in blobs], ranks)
        self._loop = asyncio.get_running_loop()
        self._round = -1
        self._holdings: dict[int, Holding] = {}
        self._plan: asyncio.Future[ExchangePlan] = self._loop.create_future()
        self._planned = asyncio.Event()
        self._arriving = 0
        self._leases: asyncio.Queue[int | None] = asyncio.Queue()
        self._blob_leases: dict[int, asyncio.Future[bool]] = {}
        self._running: asyncio.Task[None] | None = None
        self._cancelled = set[asyncio.Task[None]]()
        self._is_closed = False
        self.fetched = self.received = 0
        self._begin(0)
        # a handler may begin a later round at once, if rank 0 has announced one already
        channel.on(ExchangePlan, self._on_plan, image)
        channel.on(NewRound, self._on_new_round, image)
        channel.on(ChunkLease, self._on_chunk_lease, image)
        channel.on(BlobLease, self._on_blob_lease, image)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "planned" if self._planned.is_set() else "waiting for a plan"
        total = sum(blob.descriptor.size for blob in self._blobs)
        return (
            f"<Exchange of image {self._image}, round {self._round}, {state}: {self.available} of {total} bytes, "
            f"{self.fetched} fetched, {self.received} received>"
        )

    @property
    def available(self) -> int:
        """The number of bytes of all blobs that are on this rank."""
        return sum(blob.available for blob in self._blobs)

    def fail(self, error: FastpullError) -> None:
        """Raise an error in all readers of blobs that are still arriving."""
        for blob in self._blobs:
            if blob.partial is not None:
                blob.partial.fail(error)

    async def close(self) -> None:
        """End the exchange on this rank; the cache keeps what has arrived."""
        self._is_closed = True
        self._planned.set()
        tasks = [task for task in (self._running, *self._cancelled) if task is not None]
        for task in tasks:
            task.cancel()
        self._sender.close()
        if tasks:
            await asyncio.wait(tasks)
        await self._finish_writes()
        for blob in self._blobs:
            await in_thread(self._executor, blob.close)
        if self._build_member is not None:
            await in_thread(self._executor, self._build_member.close)

    # --- rounds

    def _begin(self, number: int) -> None:
        self._round = number
        self._planned.set()  # frames that wait for the plan of the last round see that the round is over
        self._planned = asyncio.Event()
        self._plan = self._loop.create_future()
        self._leases, self._blob_leases = asyncio.Queue(), {}
        before = self._running
        if before is not None:
            before.cancel()
            self._cancelled.add(before)
            before.add_done_callback(self._cancelled.discard)
        self._sender.begin(number)
        self._holdings = {}  # nothing is forwarded until the next plan, which counts what arrives until then
        self._running = self._loop.create_task(self._run_round(number, before))

    async def _run_round(self, number: int, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait({before})
            await self._finish_writes()  # so that `ChunksHeld` counts them
            chunks = await in_thread(self._executor, self._find_chunks)
            artifacts = None if self._build_member is None else tuple(self._build_member.has)
            self._channel.send(ROOT, ChunksHeld(self._image, number, chunks, self._wants, artifacts))
            await self._follow(await self._plan)
            async with task_group() as group:
                for _ in range(_LEASES):
                    group.create_task(self._deliver_chunks(number))
        except FastpullError as error:
            self._fail(error)

    async def _follow(self, plan: ExchangePlan) -> None:
        numbers = range(len(self._blobs))
        holdings = {
            rank: Holding(member.chunks, frozenset(compress(numbers, member.wanted_blobs)))
            for rank, member in plan.holdings.items()
        }
        wanted = holdings[self._channel.rank].wants
        for number, blob in enumerate(self._blobs):
            if number in wanted and blob.is_empty:
                await self._allocate(blob)
        self._holdings = holdings
        if self._build_member is not None:
            members = {
                rank: MemberState(frozenset(), member.artifacts)
                for rank, member in plan.holdings.items()
                if member.artifacts is not None
            }
            self._build_member.plan(self._round, plan.sources, members)
        self._planned.set()

    def _find_chunks(self) -> tuple[bool, ...]:
        return tuple(self._blobs[chunk.blob].has(chunk.start, chunk.stop) for chunk in self._chunks)

    async def _finish_writes(self) -> None:
        while self._arriving:  # noqa: ASYNC110  # a write takes milliseconds
            await asyncio.sleep(0.005)

    def _fail(self, error: FastpullError) -> None:
        if not self._is_closed:
            self._on_error(error)

    def _on_new_round(self, _: int, message: NewRound) -> None:
        if not self._is_closed and message.round > self._round:
            self._begin(message.round)

    def _on_plan(self, _: int, plan: ExchangePlan) -> None:
        if plan.round == self._round and not self._plan.done():
            self._plan.set_result(plan)

    def _on_chunk_lease(self, _: int, lease: ChunkLease) -> None:
        if lease.round == self._round:
            self._leases.put_nowait(lease.chunk)

    def _on_blob_lease(self, _: int, lease: BlobLease) -> None:
        reply = self._blob_leases.get(lease.blob)
        if lease.round == self._round and reply is not None and not reply.done():
            reply.set_result(lease.is_granted)

    # --- delivering

    async def _deliver_chunks(self, round_: int) -> None:
        while True:
            self._channel.send(ROOT, ChunkRequest(self._image, round_))
            number = await self._leases.get()
            if number is None:
                return
            for chunk in await self._deliver(self._chunks[number]):
                await self._sender.flush((FrameKind.BLOB, chunk.blob, chunk.number, chunk.number))
                self._channel.send(ROOT, ChunkDelivered(self._image, round_, chunk.number))

    async def _deliver(self, chunk: Chunk) -> Sequence[Chunk]:
        """Fetch or read a chunk and queue it for sending; return the chunks that are queued."""
        blob = self._blobs[chunk.blob]
        try:
            await self._obtain(blob, chunk)
        except RangesIgnored:
            if not await self._lease_blob(chunk.blob):
                return (chunk,)  # another rank delivers the whole blob, with this chunk
            chunks = [one for one in self._chunks if one.blob == chunk.blob]
            await self._obtain(blob, *chunks)
            return chunks
        return (chunk,)

    async def _obtain(self, blob: LocalBlob, *chunks: Chunk) -> None:
        """Forward what is available of adjacent chunks of a blob, and fetch the rest."""
        start, stop = chunks[0].start, chunks[-1].stop
        for low, high in blob.available_ranges(start, stop):
            self._forward_ranges(chunks, low, high)
        if blob.has(start, stop):
            return

        def on_written(low: int, high: int) -> None:
            self._loop.call_soon_threadsafe(self._on_fetched, chunks, low, high)

        is_all = (start, stop) == (0, blob.descriptor.size)
        await self._fetch_blob(chunks[0].blob, RangeTarget(blob, start, stop, on_written), is_all)
        await asyncio.sleep(0)  # run the calls of `_on_fetched` for the last writes first

    async def _lease_blob(self, blob: int) -> bool:
        """Request the lease of a whole blob, whose host ignores ranges; return whether this rank gets it."""
        if blob not in self._blob_leases:
            self._blob_leases[blob] = self._loop.create_future()
            self._channel.send(ROOT, BlobRequest(self._image, self._round, blob))
            return await self._blob_leases[blob]
        return False  # requested already, for another chunk

    def _on_fetched(self, chunks: Sequence[Chunk], start: int, stop: int) -> None:
        self.fetched += stop - start
        self._forward_ranges(chunks, start, stop)

    def _forward_ranges(self, chunks: Sequence[Chunk], start: int, stop: int) -> None:
        for chunk in chunks:
            if chunk.start < stop and start < chunk.stop:
                self._forward(chunk, self._channel.rank, max(start, chunk.start), min(stop, chunk.stop))

    def _forward(self, chunk: Chunk, origin: int, start: int, stop: int) -> None:
        """Queue a range for the next ranks of the chunk's tree."""
        wanting, fan_out = receivers(self._holdings, chunk), self._channel.terms.fan_out
        ranks = next_ranks(self._channel.rank, origin, wanting, chunk.number, fan_out)
        blob, number = self._blobs[chunk.blob], chunk.number
        self._sender.put(ranks, SendRequest(blob, FrameKind.BLOB, chunk.blob, number, number, origin, start, stop))

    # --- receiving

    async def receive(self, from_rank: int, frame: Frame, memory: memoryview) -> None:
        """Store a frame, and forward it.

        Args:
            from_rank: the rank that sent it.
            frame: its header.
            memory: header and payload.
        """
        if frame.round > self._round:
            return  # this rank was dropped, or will hear of the new round in a moment
        await self._planned.wait()
        if self._is_closed or frame.round != self._round:
            return
        self._arriving += 1
        try:
            await in_thread(self._executor, self._verify, from_rank, frame, memory)
            if frame.kind is FrameKind.BLOB:
                await self._receive_blob(frame, memory[HEADER_SIZE:])
            elif self._build_member is not None:
                await self._build_member.receive(frame, memory[HEADER_SIZE:])
        except FastpullError as error:
            self._fail(error)
        finally:
            self._arriving -= 1

    def _verify(self, from_rank: int, frame: Frame, memory: memoryview) -> None:
        if not frame.is_intact(memory):
            raise FrameDamaged(self._channel.name(from_rank), frame.offset, frame.size)

    async def _receive_blob(self, frame: Frame, content: memoryview) -> None:
        blob = self._blobs[frame.item]
        new = await in_thread(self._executor, blob.write, frame.offset, [content])
        self.received += sum(stop - start for start, stop in new)
        blob.origins.add(frame.origin)
        self._forward(self._chunks[frame.part], frame.origin, frame.offset, frame.offset + frame.size)
