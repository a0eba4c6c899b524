"""Downloading one blob: ranges over several connections, again where they fail, into a file written in any order.

The first range goes alone: its answer tells where the blob is and whether the host knows ranges. Then as many run side
by side as the host's lanes allow, the lowest bytes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from fastpull.concurrency.threads import in_thread, task_group
from fastpull.errors import FastpullError, RateLimited, TransportError
from fastpull.registry.download.ranges import FIRST_RANGE, MIB, RangePlan
from fastpull.registry.http.retry import Attempts, Backoff
from fastpull.telemetry.timing import clock, waiting
from fastpull.telemetry.trace import Stage, Wait

if TYPE_CHECKING:
    from fastpull.concurrency.budget import ByteBudget
    from fastpull.concurrency.semaphores import Permit
    from fastpull.concurrency.threads import TaskGroup
    from fastpull.oci.descriptor import Descriptor
    from fastpull.registry.client import BlobBody, RegistryClient
    from fastpull.registry.download.throughput import RangeThroughput
    from fastpull.registry.host_limiter import HostLimiter
    from fastpull.telemetry.timing import TimingScope
    from fastpull.telemetry.trace import Lane

_BATCH = MIB
"""Bytes that are collected before they are written: a write per received piece costs three times as much."""

STREAM_COST = 4 * MIB
"""What one connection may hold in memory: its receive buffer, a batch that grows and one that is written."""

MIN_PROGRESS = 64 << 10
"""An attempt at a range that brings less counts as one that brought nothing, so that a blob that is always cut off is
given up."""

_MAX_LAGS = 2  # of one range: after that it is waited for

ByteRange = tuple[int, int]
Piece = TypeVar("Piece", bytes, memoryview, bytes | memoryview)


class DownloadTarget(Protocol):
    """Where the bytes go: `fastpull.cache.partial.blob.PartialBlob`."""

    def gaps(self) -> list[ByteRange]:
        """The ranges that are not there yet."""

    def write(self, offset: int, pieces: Sequence[bytes]) -> None:
        """Writes consecutive pieces; blocks."""


class _Lagging(Exception):
    """A stream is far slower than the others of its host."""


class RangesIgnored(Exception):
    """A host has sent the whole blob, where a range was to come."""


@dataclass(slots=True)
class _Stretch:
    """A range on its way: ``start`` moves on as bytes come; ``turn`` is for a connection, asked for at ``asked``."""

    start: int
    stop: int
    turn: Permit
    asked: float


class Download:
    """Fetches what a target lacks of a blob.

    Args:
        client: of the registry.
        repository: within it.
        descriptor: of the blob.
        target: gets the bytes.
        rank: of several downloads at once the lowest gets its connections first.
        budget: of memory.
        executor: for blocking writes.
        part: counts where the time goes.
        is_part: the target wants a part of the blob, and has no use for all of it.
        is_patient: obey a host that asks for a pause; otherwise that is a failure, for somebody else can be asked.
    """

    backoff = Backoff()

    def __init__(
        self,
        client: RegistryClient,
        repository: str,
        descriptor: Descriptor,
        target: DownloadTarget,
        *,
        rank: int,
        budget: ByteBudget,
        executor: Executor,
        part: TimingScope,
        is_part: bool = False,
        is_patient: bool = True,
    ) -> None:
        self._is_part = is_part
        self._is_patient = is_patient
        self._client = client
        self._repository = repository
        self._descriptor = descriptor
        self._target = target
        self._rank = rank
        self._budget = budget
        self._executor = executor
        self._part = part
        self._answered = asyncio.Event()
        self._is_whole = False

    async def run(self) -> None:
        """Fetches everything that is missing.

        Raises:
            FastpullError: a range failed for good, or too often. What came is in the target.
            RangesIgnored: the host gives nothing but the whole blob, and a part was wanted.
        """
        try:
            await self._fetch_ranges()
        except RangesIgnored:
            if self._is_part:
                raise
            asked = clock()
            await self._fetch(_Stretch(0, self._descriptor.size, await self._acquire(), asked), alone=True)

    async def _fetch_ranges(self) -> None:
        plan = RangePlan(self._target.gaps())
        first = plan.take(FIRST_RANGE)
        if first is None:
            return
        async with task_group() as group:
            asked = clock()
            probe = self._start(group, _Stretch(*first, await self._acquire(), asked), alone=True)
            probe.add_done_callback(lambda _: self._answered.set())
            await self._answered.wait()
            with self._lanes.planned(plan):
                while not self._is_whole:
                    asked = clock()
                    turn = await self._acquire()
                    span = plan.take(self._lanes.range_size)
                    if span is None:
                        turn.release()
                        break
                    self._start(group, _Stretch(*span, turn, asked))

    def _start(self, group: TaskGroup, stretch: _Stretch, *, alone: bool = False) -> asyncio.Task[None]:
        task = group.create_task(self._fetch(stretch, alone=alone))
        # a task that is cancelled before its first step never reaches what it would do at its end
        task.add_done_callback(lambda _: stretch.turn.release())
        return task

    @property
    def _lanes(self) -> HostLimiter:
        return self._client.lanes(self._descriptor.digest)

    async def _acquire(self) -> Permit:
        return await self._lanes.acquire(self._rank)

    async def _fetch(self, stretch: _Stretch, *, alone: bool = False) -> None:
        """Fetches one range, again from where it broke off if need be."""
        attempts, lags = Attempts(self.backoff), 0
        try:
            while stretch.start < stretch.stop:
                before = stretch.start
                try:
                    async with self._budget.hold(STREAM_COST), self._client.place():
                        with self._part.lane(Stage.DOWNLOAD) as lane:
                            await self._stream(stretch, alone, lane, may_lag=lags < _MAX_LAGS)
                except _Lagging:
                    lags += 1
                    stretch.asked = clock()
                    self._client.forget_location(self._descriptor.digest)
                    error = TransportError(self._client.name, "a connection fell far behind the others")
                    self._client.on_retry(self._client.name, error, 0.0)
                except FastpullError as error:
                    if stretch.start - before >= MIN_PROGRESS:
                        attempts.progressed()
                    is_busy = isinstance(error, RateLimited) or getattr(error, "status", None) == 503
                    if is_busy and not self._is_patient:
                        raise
                    pause = attempts.failed(error)
                    if is_busy:
                        self._lanes.slow_down()
                    stretch.turn.release()
                    stretch.asked = clock()
                    self._client.on_retry(self._client.name, error, pause)
                    await asyncio.sleep(pause)
                    stretch.turn = await self._acquire()
        finally:
            stretch.turn.release()

    async def _stream(self, stretch: _Stretch, alone: bool, lane: Lane, *, may_lag: bool) -> None:
        lane.wait(stretch.asked, clock(), Wait.CONNECTION)
        digest, loop, limit = self._descriptor.digest, asyncio.get_running_loop(), asyncio.timeout(None)
        try:
            async with limit, AsyncExitStack() as stack:

                def on_lag() -> None:
                    if may_lag and not self._is_whole:  # a whole blob would begin again from its first byte
                        limit.reschedule(loop.time())

                flow = stack.enter_context(self._lanes.flows.watched(on_lag, lambda: self._client.is_paused(digest)))
                with waiting(lane, Wait.ANSWER):
                    answer = self._client.open_range(self._repository, self._descriptor, stretch.start, stretch.stop)
                    body = await stack.enter_async_context(answer)
                answered = clock()
                if body.is_whole:
                    if not alone or self._is_part:
                        raise RangesIgnored
                    self._is_whole = True
                    stretch.stop = body.stop
                try:
                    await self._receive(body, stretch, flow)
                finally:
                    lane.work(answered, clock(), size=stretch.start - body.start)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise _Lagging from error

    async def _receive(self, body: BlobBody, stretch: _Stretch, flow: RangeThroughput) -> None:
        gaps = self._target.gaps()  # what is there may have been verified: it is never written again
        self._answered.set()
        at = body.start
        async with _Batches(self._target, self._executor, self._part) as batches:
            while pieces := await body.pieces():
                for piece in pieces:
                    if len(piece) > body.stop - at:
                        raise TransportError(body.host, f"more than the {body.stop - body.start} bytes it announced")
                    for offset, part in clipped(at, piece, gaps):
                        await batches.put(offset, part)
                    at += len(piece)
                    stretch.start = max(stretch.start, at)
                size = sum(map(len, pieces))
                flow.add(size)
                self._lanes.received(size)
        if at < body.stop:
            raise TransportError(
                body.host, f"the answer ended after {at - body.start} of {body.stop - body.start} bytes"
            )


def clipped(offset: int, piece: Piece, gaps: Iterable[ByteRange]) -> Iterator[tuple[int, Piece]]:
    """The parts of a piece that fill gaps: what is there already is never written again."""
    end = offset + len(piece)
    for start, stop in gaps:
        if start <= offset and end <= stop:
            yield offset, piece
        elif start < end and offset < stop:
            low, high = max(start, offset), min(stop, end)
            yield low, piece[low - offset : high - offset]


class _Batches:
    """Collects the pieces of a stream and writes them in batches, one while the next is collected."""

    def __init__(self, target: DownloadTarget, executor: Executor, part: TimingScope) -> None:
        self._target = target
        self._executor = executor
        self._part = part
        self._pieces: list[bytes] = []
        self._offset = 0
        self._size = 0
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> None:
        """Writes what has come, also when the stream broke or was cancelled: it will not have to come again."""
        await self._flush()
        await self._written()

    async def put(self, offset: int, piece: bytes) -> None:
        if offset != self._offset + self._size:
            await self._flush()
            self._offset = offset
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size >= _BATCH:
            await self._flush()

    async def _flush(self) -> None:
        await self._written()
        if self._size:
            write = in_thread(self._executor, self._write, self._offset, self._pieces)
            self._writing = asyncio.create_task(write)
            self._offset, self._pieces, self._size = self._offset + self._size, [], 0

    def _write(self, offset: int, pieces: Sequence[bytes]) -> None:
        with self._part.at(Stage.STORE):
            self._target.write(offset, pieces)

    async def _written(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing
