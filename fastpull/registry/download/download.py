"""The download of one blob: concurrent ranges over several connections, with retries, into a target with random access.

The first range is requested alone: its response shows where the blob is, and whether the host supports ranges. The
following ranges run concurrently, as many as the host's limiter allows, lowest offset first.
"""

from __future__ import annotations

import asyncio
import logging
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

_log = logging.getLogger("fastpull.registry.download")

_BATCH = MIB
"""Bytes collected before a write: one write per received piece takes three times as long."""

STREAM_COST = 4 * MIB
"""The memory of one connection: its receive buffer, a batch being collected and one being written."""

MIN_PROGRESS = 64 << 10
"""The bytes an attempt at a range must bring to count as progress, so that a blob that is always cut off fails."""

_MAX_LAGS = 2  # per range; after that it is waited for

ByteRange = tuple[int, int]
Piece = TypeVar("Piece", bytes, memoryview, bytes | memoryview)


class DownloadTarget(Protocol):
    """The destination of the bytes, such as `fastpull.cache.partial.blob.PartialBlob`."""

    def gaps(self) -> list[ByteRange]:
        """Return the ranges still missing."""

    def write(self, offset: int, pieces: Sequence[bytes]) -> None:
        """Write consecutive pieces; blocks."""


class _Lagging(Exception):
    """A range is far slower than the others from its host."""


class RangesIgnored(Exception):
    """A host sent the whole blob in place of the requested range."""


@dataclass(slots=True)
class _PendingRange:
    """A range in progress.

    Attributes:
        start: the offset of the next byte to receive.
        stop: the end of the range.
        permit: the permit for a connection.
        requested: when the permit was requested, for the trace.
    """

    start: int
    stop: int
    permit: Permit
    requested: float


class Download:
    """Fetches the missing ranges of a blob.

    Args:
        client: the client of the registry.
        repository: the repository in the registry.
        descriptor: the descriptor of the blob.
        target: the destination of the bytes.
        priority: among concurrent downloads, the lowest gets its connections first.
        budget: the memory budget.
        executor: the executor for blocking writes.
        timing: records the time of stages.
        is_partial: whether the target wants only a part of the blob.
        honor_retry_after: whether to wait if the host is overloaded; otherwise that is a failure, for an endpoint that
            has a next one.
    """

    backoff = Backoff()

    def __init__(
        self,
        client: RegistryClient,
        repository: str,
        descriptor: Descriptor,
        target: DownloadTarget,
        *,
        priority: int,
        budget: ByteBudget,
        executor: Executor,
        timing: TimingScope,
        is_partial: bool = False,
        honor_retry_after: bool = True,
    ) -> None:
        self._is_partial = is_partial
        self._honor_retry_after = honor_retry_after
        self._client = client
        self._repository = repository
        self._descriptor = descriptor
        self._target = target
        self._priority = priority
        self._budget = budget
        self._executor = executor
        self._timing = timing
        self._responded = asyncio.Event()
        self._is_whole = False
        self._in_progress = 0

    def __repr__(self) -> str:
        missing = sum(stop - start for start, stop in self._target.gaps())
        state = f"{missing} of {self._descriptor.size} bytes missing, {self._in_progress} ranges in progress"
        whole = ", host ignores ranges" if self._is_whole else ""
        return f"<Download {self._descriptor.digest} from {self._client.name}/{self._repository}, {state}{whole}>"

    async def run(self) -> None:
        """Fetch everything that is missing.

        Raises:
            FastpullError: a range failed for good. The target has what was received.
            RangesIgnored: the host serves only the whole blob, and the target wants a part.
        """
        _log.debug("%r", self)
        try:
            await self._fetch_ranges()
        except RangesIgnored:
            if self._is_partial:
                raise
            requested = clock()
            whole = _PendingRange(0, self._descriptor.size, await self._acquire(), requested)
            await self._fetch(whole, alone=True)

    async def _fetch_ranges(self) -> None:
        plan = RangePlan(self._target.gaps())
        first = plan.take(FIRST_RANGE)
        if first is None:
            return
        async with task_group() as group:
            requested = clock()
            probe = self._start(group, _PendingRange(*first, await self._acquire(), requested), alone=True)
            probe.add_done_callback(lambda _: self._responded.set())
            await self._responded.wait()
            with self._limiter.planned(plan):
                while not self._is_whole:
                    requested = clock()
                    permit = await self._acquire()
                    following = plan.take(self._limiter.range_size)
                    if following is None:
                        permit.release()
                        break
                    self._start(group, _PendingRange(*following, permit, requested))

    def _start(self, group: TaskGroup, pending: _PendingRange, *, alone: bool = False) -> asyncio.Task[None]:
        task = group.create_task(self._fetch(pending, alone=alone))
        # a task cancelled before its first step does not run its finally block
        task.add_done_callback(lambda _: pending.permit.release())
        return task

    @property
    def _limiter(self) -> HostLimiter:
        return self._client.host_limiter(self._descriptor.digest)

    async def _acquire(self) -> Permit:
        return await self._limiter.acquire(self._priority)

    async def _fetch(self, pending: _PendingRange, *, alone: bool = False) -> None:
        """Fetch one range; after a failure, continue where it broke off."""
        attempts, lags = Attempts(self.backoff), 0
        self._in_progress += 1
        try:
            while pending.start < pending.stop:
                before = pending.start
                try:
                    async with self._budget.hold(STREAM_COST), self._client.connection_permit():
                        with self._timing.lane(Stage.DOWNLOAD) as lane:
                            await self._stream(pending, alone, lane, may_lag=lags < _MAX_LAGS)
                except _Lagging:
                    lags += 1
                    pending.requested = clock()
                    self._client.forget_location(self._descriptor.digest)
                    error = TransportError(self._client.name, "a connection was far slower than the others")
                    _log.debug("bytes %d-%d lag, requested again", pending.start, pending.stop - 1)
                    self._client.on_retry(self._client.name, error, 0.0)
                except FastpullError as error:
                    if pending.start - before >= MIN_PROGRESS:
                        attempts.reset()
                    is_busy = isinstance(error, RateLimited) or getattr(error, "status", None) == 503
                    if is_busy and not self._honor_retry_after:
                        raise
                    pause = attempts.failed(error)
                    if is_busy:
                        self._limiter.slow_down()
                    pending.permit.release()
                    pending.requested = clock()
                    self._client.on_retry(self._client.name, error, pause)
                    await asyncio.sleep(pause)
                    pending.permit = await self._acquire()
        finally:
            self._in_progress -= 1
            pending.permit.release()

    async def _stream(self, pending: _PendingRange, alone: bool, lane: Lane, *, may_lag: bool) -> None:
        lane.wait(pending.requested, clock(), Wait.CONNECTION)
        digest, loop, limit = self._descriptor.digest, asyncio.get_running_loop(), asyncio.timeout(None)
        try:
            async with limit, AsyncExitStack() as stack:

                def on_lag() -> None:
                    if may_lag and not self._is_whole:  # a whole blob would restart from its first byte
                        limit.reschedule(loop.time())

                watch = self._limiter.throughput.watched(on_lag, lambda: self._client.is_paused(digest))
                throughput = stack.enter_context(watch)
                with waiting(lane, Wait.ANSWER):
                    opening = self._client.open_range(self._repository, self._descriptor, pending.start, pending.stop)
                    body = await stack.enter_async_context(opening)
                responded = clock()
                if body.is_whole:
                    if not alone or self._is_partial:
                        raise RangesIgnored
                    self._is_whole = True
                    pending.stop = body.stop
                try:
                    await self._receive(body, pending, throughput)
                finally:
                    lane.work(responded, clock(), size=pending.start - body.start)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise _Lagging from error

    async def _receive(self, body: BlobBody, pending: _PendingRange, throughput: RangeThroughput) -> None:
        gaps = self._target.gaps()  # present bytes may be verified already, so they are never overwritten
        self._responded.set()
        at = body.start
        async with _WriteBatcher(self._target, self._executor, self._timing) as batcher:
            while pieces := await body.pieces():
                for piece in pieces:
                    if len(piece) > body.stop - at:
                        announced = body.stop - body.start
                        raise TransportError(body.host, f"sent more than the {announced} bytes it announced")
                    for offset, part in clipped(at, piece, gaps):
                        await batcher.put(offset, part)
                    at += len(piece)
                    pending.start = max(pending.start, at)
                size = sum(map(len, pieces))
                throughput.add(size)
                self._limiter.received(size)
        if at < body.stop:
            received, expected = at - body.start, body.stop - body.start
            raise TransportError(body.host, f"the response ended after {received} of {expected} bytes")


def clipped(offset: int, piece: Piece, gaps: Iterable[ByteRange]) -> Iterator[tuple[int, Piece]]:
    """Yield the parts of a piece that fill gaps, each with its offset."""
    end = offset + len(piece)
    for start, stop in gaps:
        if start <= offset and end <= stop:
            yield offset, piece
        elif start < end and offset < stop:
            low, high = max(start, offset), min(stop, end)
            yield low, piece[low - offset : high - offset]


class _WriteBatcher:
    """Collects received pieces and writes them in batches; one batch is written while the next is collected."""

    def __init__(self, target: DownloadTarget, executor: Executor, timing: TimingScope) -> None:
        self._target = target
        self._executor = executor
        self._timing = timing
        self._pieces: list[bytes] = []
        self._offset = 0
        self._size = 0
        self._writing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> None:
        """Write the rest, also after a failure or cancellation, so that it is not downloaded again."""
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
        with self._timing.timed(Stage.STORE):
            self._target.write(offset, pieces)

    async def _written(self) -> None:
        if self._writing is not None:
            writing, self._writing = self._writing, None
            await writing
