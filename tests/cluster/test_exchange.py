"""The exchange: for any holdings, and any ranks that fail, the others end with all bytes, each fetched once."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fastpull.cache.partial.extents import Extents
from fastpull.cache.store import Store
from fastpull.cluster.blobs.exchange import Exchange
from fastpull.cluster.blobs.exchange_coordinator import ExchangeCoordinator
from fastpull.cluster.blobs.local_blob import LocalBlob, RangeTarget
from fastpull.cluster.blobs.plan import MIB, cut
from fastpull.cluster.control.channel import ClusterTerms, ControlChannel
from fastpull.cluster.transport.fabric import OnFrame
from fastpull.cluster.transport.frame import Frame
from fastpull.cluster.transport.sender import Sender
from fastpull.concurrency.threads import in_thread
from fastpull.errors import FastpullError, FrameDamaged
from fastpull.oci.descriptor import Descriptor
from fastpull.oci.digest import Digest
from fastpull.registry.download.download import RangesIgnored
from tests.cluster.memory import Hub, flip

SIZES = (5 * MIB + 17, 3 * MIB, 1)
CONTENTS = tuple(random.Random(size).randbytes(size) for size in SIZES)
BLOBS = tuple(Descriptor("application/octet-stream", Digest.of(content), len(content)) for content in CONTENTS)


@dataclass(frozen=True)
class ExchangeCase:
    """The initial state of the ranks.

    Attributes:
        had: for each rank the ranges (blob, start, stop) in its cache; None for a rank that has all blobs.
        wants: for each rank whether it needs the blobs that it lacks.
        fan_out: the fan-out of the trees.
        dropped: the ranks that fail, with the number of frames that they receive before.
        gives_ranges: whether the registry serves ranges.
    """

    had: tuple[tuple[tuple[int, int, int], ...] | None, ...]
    wants: tuple[bool, ...]
    fan_out: int = 1
    dropped: dict[int, int] = field(default_factory=dict)
    gives_ranges: bool = True


@st.composite
def cases(draw: st.DrawFn) -> ExchangeCase:
    ranks = draw(st.integers(1, 5))
    blob = st.integers(0, len(SIZES) - 1)
    part = blob.flatmap(lambda number: st.tuples(st.just(number), *[st.integers(0, SIZES[number])] * 2))
    had = st.one_of(st.none(), st.lists(part, max_size=3).map(tuple))
    dropped = draw(st.dictionaries(st.integers(1, 4), st.integers(0, 3), max_size=2)) if ranks > 1 else {}
    return ExchangeCase(
        tuple(draw(had) for _ in range(ranks)),
        tuple(draw(st.booleans()) for _ in range(ranks)),
        draw(st.integers(1, 5)),
        {rank: count for rank, count in dropped.items() if rank < ranks},
        draw(st.booleans()),
    )


async def no_allocation(_: LocalBlob) -> None:
    raise AssertionError("all blobs have files")


class ExchangeRanks:
    """The ranks of a case, each with its own store, exchange and control channel."""

    def __init__(self, case: ExchangeCase, folder: str, executor: ThreadPoolExecutor) -> None:
        self.case = case
        self.hub = Hub(len(case.had))
        self.executor = executor
        self.errors: dict[int, FastpullError] = {}
        self.fetched: list[tuple[int, int, int]] = []
        self.frames = dict.fromkeys(range(len(case.had)), 0)
        terms = ClusterTerms(timeout_seconds=60, stall_seconds=60, best_effort=True, fan_out=case.fan_out)
        self.channels = [ControlChannel(fabric, f"n{fabric.rank}", terms) for fabric in self.hub.fabrics]
        self.blobs = [self._open_blobs(rank, f"{folder}/{rank}") for rank in range(len(case.had))]
        self.held = [
            [local_blob.available_ranges(0, local_blob.descriptor.size) for local_blob in blobs] for blobs in self.blobs
        ]
        self.exchanges: dict[int, Exchange] = {}

    def _open_blobs(self, rank: int, folder: str) -> list[LocalBlob]:
        store, had = Store(folder), self.case.had[rank]
        blobs = []
        for number, blob in enumerate(BLOBS):
            lock = store.lock(blob.digest)
            assert lock.try_acquire()
            partial = store.begin(blob.digest, blob.size, lock)
            local_blob = LocalBlob(blob, None, partial)
            parts = [(number, 0, blob.size)] if had is None else [part for part in had if part[0] == number]
            for _, start, stop in parts:
                local_blob.write(min(start, stop), [CONTENTS[number][min(start, stop) : max(start, stop)]])
            blobs.append(local_blob)
        return blobs

    async def run(self) -> None:
        ranks = len(self.channels)
        self.coordinator = ExchangeCoordinator(0, SIZES, ranks, range(ranks), self.channels[0])
        for rank, channel in enumerate(self.channels):
            channel.start(self._on_frame(rank))
            note = partial(self._note, rank)
            self.exchanges[rank] = Exchange(
                0,
                self.blobs[rank],
                ranks,
                channel,
                Sender(0, channel.fabric, self.executor, note),
                self.executor,
                note,
                wants=self.case.wants[rank],
                allocate=no_allocation,
                fetch=self._fetch,
            )
        for rank in [rank for rank, count in self.case.dropped.items() if count == 0]:
            await self._drop(rank)
        async with asyncio.timeout(60):
            while not self.is_done() and not self.errors:  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    def is_done(self) -> bool:
        return all(
            local_blob.available == local_blob.descriptor.size
            for rank in self.exchanges
            if self.case.wants[rank]
            for local_blob in self.blobs[rank]
        )

    async def close(self) -> None:
        self.coordinator.close()
        for exchange in list(self.exchanges.values()):
            await exchange.close()
        for channel in self.channels:
            await channel.stop()
        for task in list(self.hub.tasks):
            task.cancel()
        await asyncio.gather(*self.hub.tasks, return_exceptions=True)

    async def _fetch(self, blob: int, target: RangeTarget, is_all: bool) -> None:
        if not (is_all or self.case.gives_ranges):
            raise RangesIgnored
        for start, stop in target.gaps():
            for at in range(start, stop, 300_000):
                piece = CONTENTS[blob][at : min(at + 300_000, stop)]
                await in_thread(self.executor, target.write, at, [piece])
                self.fetched.append((blob, at, at + len(piece)))

    def _note(self, rank: int, error: FastpullError) -> None:
        self.errors.setdefault(rank, error)

    def _on_frame(self, rank: int) -> OnFrame:
        async def on_frame(sender: int, memory: memoryview) -> None:
            if rank in self.exchanges:
                self.frames[rank] += 1
                await self.exchanges[rank].receive(sender, Frame.unpack(memory), memory)
                if self.frames[rank] == self.case.dropped.get(rank):
                    self.hub.spawn(self._drop(rank))

        return on_frame

    async def _drop(self, rank: int) -> None:
        if rank in self.exchanges:
            await self.exchanges.pop(rank).close()
            self.coordinator.drop(rank)


@contextlib.contextmanager
def ranks_of(case: ExchangeCase) -> Iterator[ExchangeRanks]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, ThreadPoolExecutor(4) as executor:
        yield ExchangeRanks(case, folder, executor)


def exchange(case: ExchangeCase, spoiled: bool = False) -> ExchangeRanks:
    with ranks_of(case) as ranks:

        async def run() -> None:
            if spoiled:
                ranks.hub.spoil = flip(5)
            try:
                await ranks.run()
            finally:
                await ranks.close()

        asyncio.run(run())
        for rank in ranks.exchanges:
            if case.wants[rank] and not spoiled:
                for local_blob, content in zip(ranks.blobs[rank], CONTENTS, strict=True):
                    with open(local_blob.partial.data_path, "rb") as file:  # type: ignore[union-attr]
                        assert file.read() == content
        return ranks


def covered(spans: list[tuple[int, int]]) -> int:
    """Return the number of bytes in at least one of several ranges."""
    extents = Extents()
    for start, stop in spans:
        extents.add(start, stop)
    return extents.total


@given(cases())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(ExchangeCase(((), (), ()), (True, True, True)))
@example(ExchangeCase((None, (), ()), (True, True, True), 2))
@example(ExchangeCase(((), (), (), ()), (True, True, True, True), 1, {2: 1}))
@example(ExchangeCase(((), None, ()), (True, False, True), 1, {1: 0}))
@example(ExchangeCase(((), (), ()), (True, True, True), gives_ranges=False))
def test_ranks_get_all_wanted_bytes_and_none_is_fetched_twice(case: ExchangeCase) -> None:
    ranks = exchange(case)
    assert not ranks.errors
    if case.dropped:
        return
    for chunk in cut(SIZES, len(case.had)):
        fetched = [
            (max(start, chunk.start), min(stop, chunk.stop))
            for blob, start, stop in ranks.fetched
            if blob == chunk.blob and start < chunk.stop and chunk.start < stop
        ]
        assert sum(stop - start for start, stop in fetched) == covered(fetched)
        assert (
            not fetched
            or not case.gives_ranges
            or not any(
                low <= chunk.start and chunk.stop <= high for held in ranks.held for low, high in held[chunk.blob]
            )
        )


def test_damaged_frame_is_not_written_and_names_its_sender() -> None:
    ranks = exchange(ExchangeCase((None, ()), (True, True)), spoiled=True)
    [(rank, error)] = ranks.errors.items()
    assert rank == 1
    assert isinstance(error, FrameDamaged)
    assert "rank 0" in str(error)
    assert not any(local_blob.available for local_blob in ranks.blobs[1])


def test_repr_shows_round_state_and_bytes() -> None:
    ranks = exchange(ExchangeCase((None, ()), (True, True)))
    total = sum(SIZES)
    assert repr(ranks.exchanges[1]) == (
        f"<Exchange of image 0, round 0, closed: {total} of {total} bytes, 0 fetched, {total} received>"
    )
