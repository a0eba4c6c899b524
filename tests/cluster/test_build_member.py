"""Building layers together: for any ranks that fail, the others end with all artifacts, and publish together."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fastpull.cache.store import Store
from fastpull.cluster.blobs.exchange import Exchange
from fastpull.cluster.blobs.exchange_coordinator import ExchangeCoordinator
from fastpull.cluster.blobs.local_blob import LocalBlob, RangeTarget
from fastpull.cluster.blobs.plan import MIB
from fastpull.cluster.build.artifacts import FileRegion, LayerArtifact, Trailer
from fastpull.cluster.build.member import BuildMember
from fastpull.cluster.control.channel import ClusterTerms, ControlChannel
from fastpull.cluster.transport.fabric import HEADER_SIZE, OnFrame
from fastpull.cluster.transport.frame import Frame, FrameKind
from fastpull.cluster.transport.sender import Sender
from fastpull.concurrency.threads import in_thread, task_group
from fastpull.errors import FastpullError, FrameDamaged, LayerBlocksDamaged, OutputDiffers, OutputError, from_os_error
from fastpull.oci.descriptor import Descriptor
from fastpull.oci.digest import Digest
from tests.cluster.memory import Hub

CONTENTS = tuple(random.Random(size).randbytes(size) for size in (2 * MIB + 17, 300_000, 1))
BLOBS = tuple(Descriptor("application/octet-stream", Digest.of(content), len(content)) for content in CONTENTS)
LAYERS = (0, 1, 2, 1)
BULKS = tuple(random.Random(-layer).randbytes(size) for layer, size in enumerate((5 * MIB + 3, 0, 100_000, MIB)))
RESTS = tuple(random.Random(layer).randbytes(size) for layer, size in enumerate((1, 70_000, 10, 5 * MIB)))
STEP = 700_000


def fail(error: OSError) -> OutputError:
    return from_os_error(OutputError, error, "output")


@dataclass(frozen=True)
class BuildCase:
    """The events of a job.

    Attributes:
        ranks: the number of ranks.
        fan_out: the fan-out of the trees.
        dropped: the ranks that fail: after a number of received frames; at once for 0; after a number of built
            artifacts for a negative number.
        restarts: the layers that their builder builds twice, since the blob was damaged at first.
        best_effort: whether the job goes on without ranks whose output differs.
        odd: the ranks whose output differs.
    """

    ranks: int
    fan_out: int = 2
    dropped: dict[int, int] = field(default_factory=dict)
    restarts: frozenset[int] = frozenset()
    best_effort: bool = True
    odd: frozenset[int] = frozenset()


@st.composite
def cases(draw: st.DrawFn) -> BuildCase:
    ranks = draw(st.integers(2, 5))
    dropped = draw(st.dictionaries(st.integers(1, 4), st.integers(-2, 4), max_size=2))
    return BuildCase(
        ranks,
        draw(st.integers(1, 4)),
        {rank: count for rank, count in dropped.items() if rank < ranks},
        draw(st.frozensets(st.sampled_from(range(len(LAYERS))))),
    )


class BuildRanks:
    """The ranks of a case."""

    def __init__(self, case: BuildCase, folder: str, executor: ThreadPoolExecutor) -> None:
        self.case = case
        self.folder = folder
        self.executor = executor
        self.hub = Hub(case.ranks)
        terms = ClusterTerms(timeout_seconds=60, stall_seconds=60, best_effort=case.best_effort, fan_out=case.fan_out)
        self.channels = [ControlChannel(fabric, f"n{fabric.rank}", terms) for fabric in self.hub.fabrics]
        self.errors: dict[int, FastpullError] = {}
        self.fetched: list[tuple[int, int]] = []
        self.frames = dict.fromkeys(range(case.ranks), 0)
        self.published: list[int] = []
        self.left = dict(case.dropped)
        self.exchanges: dict[int, Exchange] = {}
        self.members: dict[int, BuildMember] = {}
        self.artifacts: dict[int, list[LayerArtifact]] = {}
        self.work: dict[int, asyncio.Task[None]] = {}

    def begin(self, rank: int) -> None:
        channel = self.channels[rank]
        store, blobs = Store(f"{self.folder}/{rank}"), []
        for blob in BLOBS:
            lock = store.lock(blob.digest)
            assert lock.try_acquire()
            blobs.append(LocalBlob(blob, None, store.begin(blob.digest, blob.size, lock)))
        self.artifacts[rank] = artifacts = [
            LayerArtifact(layer, f"layer {layer}", fail) for layer in range(len(LAYERS))
        ]
        for artifact in artifacts:
            artifact.open(FileRegion(self.open(), 100), FileRegion(self.open()))
        sender = Sender(0, channel.fabric, self.executor, note := partial(self.note, rank))
        weights = [len(CONTENTS[blob]) for blob in LAYERS]
        member = BuildMember(0, "image", artifacts, weights, channel, sender, self.executor)
        self.members[rank] = member
        self.exchanges[rank] = Exchange(
            0, blobs, self.case.ranks, channel, sender, self.executor, note,
            wants=True, build_member=member, allocate=self.no_allocation, fetch=self.fetch,
        )  # fmt: skip
        channel.start(self.on_frame(rank))
        self.work[rank] = asyncio.ensure_future(self.build(rank, member, artifacts))

    def note(self, rank: int, error: FastpullError) -> None:
        self.errors.setdefault(rank, error)

    def open(self) -> int:
        fd, path = tempfile.mkstemp(dir=self.folder)
        os.unlink(path)
        return fd

    async def no_allocation(self, _: LocalBlob) -> None:
        raise AssertionError("all blobs have files")

    async def fetch(self, blob: int, target: RangeTarget, _: bool) -> None:
        for start, stop in target.gaps():
            await in_thread(self.executor, target.write, start, [CONTENTS[blob][start:stop]])
            self.fetched.append((start, stop))

    async def build(self, rank: int, member: BuildMember, artifacts: list[LayerArtifact]) -> None:
        async def one(layer: int) -> None:
            if await member.is_mine(layer):
                await in_thread(self.executor, self.build_layer, artifacts[layer])
                await member.finish(layer)
                if self.left.get(rank, 0) < 0:
                    self.left[rank] += 1
                    if not self.left[rank]:
                        self.hub.spawn(self.drop(rank))

        async with task_group() as group:
            for layer in range(len(LAYERS)):
                group.create_task(one(layer))
        await member.gathered()
        try:
            await member.agree("odd" if rank in self.case.odd else "even")
        except OutputDiffers as error:
            self.errors[rank] = error
            if self.case.best_effort:
                self.hub.spawn(self.drop(rank))
            return
        self.published.append(rank)

    def build_layer(self, artifact: LayerArtifact) -> None:
        layer = artifact.layer
        if layer in self.case.restarts:
            self.write(artifact, bytes(len(BULKS[layer]) + 5), b"wrong")
        self.write(artifact, BULKS[layer], RESTS[layer])

    def write(self, artifact: LayerArtifact, *contents: bytes) -> None:
        fds = self.open(), self.open()
        artifact.open(FileRegion(fds[0], 7), FileRegion(fds[1]))
        artifact.build()
        for file, (fd, content, base) in enumerate(zip(fds, contents, (7, 0), strict=True)):
            for at in range(0, len(content), STEP):
                piece = content[at : at + STEP]
                os.pwrite(fd, piece, base + at)
                artifact.mark_written(file, at + len(piece))
            os.close(fd)

    def on_frame(self, rank: int) -> OnFrame:
        async def on_frame(sender: int, memory: memoryview) -> None:
            if rank in self.exchanges:
                self.frames[rank] += 1
                await self.exchanges[rank].receive(sender, Frame.unpack(memory), memory)
                if self.frames[rank] == self.left.get(rank):
                    self.hub.spawn(self.drop(rank))

        return on_frame

    async def drop(self, rank: int) -> None:
        if rank in self.exchanges:
            self.work.pop(rank).cancel()
            await self.exchanges.pop(rank).close()
            self.coordinator.drop(rank)

    async def run(self) -> None:
        sizes = [len(content) for content in CONTENTS]
        self.coordinator = ExchangeCoordinator(
            0, sizes, self.case.ranks, range(self.case.ranks), self.channels[0], LAYERS
        )
        for rank in range(self.case.ranks):
            self.begin(rank)
        for rank in [rank for rank, count in self.case.dropped.items() if count == 0]:
            await self.drop(rank)
        async with asyncio.timeout(60):
            while not self.errors and not all(task.done() for task in self.work.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        if not self.errors:
            await asyncio.gather(*self.work.values())

    async def close(self) -> None:
        self.coordinator.close()
        for task in self.work.values():
            task.cancel()
        for exchange in list(self.exchanges.values()):
            await exchange.close()
        for channel in self.channels:
            await channel.stop()
        for one in list(self.hub.tasks):
            one.cancel()
        await asyncio.gather(*self.hub.tasks, *self.work.values(), return_exceptions=True)


@contextmanager
def ranks_of(case: BuildCase) -> Iterator[BuildRanks]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, ThreadPoolExecutor(4) as executor:
        yield BuildRanks(case, folder, executor)


def build(case: BuildCase, spoil: Callable[[int, int, bytearray], None] | None = None) -> BuildRanks:
    """Run a case; compare the artifacts of all ranks at the end, unless an error is expected."""
    with ranks_of(case) as ranks:

        async def run() -> None:
            if spoil is not None:
                ranks.hub.spoil = spoil
            try:
                await ranks.run()
                if not ranks.errors:
                    for rank in ranks.exchanges:
                        check(ranks.artifacts[rank])
            finally:
                await ranks.close()

        asyncio.run(run())
        return ranks


def check(artifacts: list[LayerArtifact]) -> None:
    for artifact, bulk, rest in zip(artifacts, BULKS, RESTS, strict=True):
        assert artifact.is_complete
        for file, content in zip(artifact.files, (bulk, rest), strict=True):
            buffer = bytearray(len(content))
            assert file.read(memoryview(buffer), 0, artifact.generation)
            assert buffer == content


@given(cases())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(BuildCase(2))
@example(BuildCase(4, 1, restarts=frozenset(range(len(LAYERS)))))
@example(BuildCase(4, 2, {1: 0, 2: 2}))
@example(BuildCase(5, 3, {1: -1, 3: -2}))
def test_remaining_ranks_have_all_artifacts_and_publish_together(case: BuildCase) -> None:
    ranks = build(case)
    assert not ranks.errors
    assert set(ranks.published) >= ranks.exchanges.keys()
    if not case.dropped:
        built = [layer for member in ranks.members.values() for layer in member.built]
        assert sorted(built) == list(range(len(LAYERS))), "each once"
        assert sum(stop - start for start, stop in ranks.fetched) == sum(map(len, CONTENTS))


def damage_first_artifact(at: int, *, is_repacked: bool) -> Callable[[int, int, bytearray], None]:
    """Damage the frames of the first layer's bulk; with a matching fingerprint, as a faulty relay would."""

    def spoil(_: int, __: int, memory: bytearray) -> None:
        frame = Frame.unpack(memoryview(memory))
        if frame.kind is FrameKind.ARTIFACT and frame.item == 0:
            memory[HEADER_SIZE + at] ^= 1
            if is_repacked:
                frame.pack(memoryview(memory))

    return spoil


@pytest.mark.parametrize(("is_repacked", "expected"), [(False, FrameDamaged), (True, LayerBlocksDamaged)])
def test_damaged_artifact_is_refused(is_repacked: bool, expected: type[FastpullError]) -> None:
    ranks = build(BuildCase(2), damage_first_artifact(5, is_repacked=is_repacked))
    [(rank, error)] = ranks.errors.items()
    assert isinstance(error, expected)
    assert not ranks.artifacts[rank][0].is_complete
    assert not ranks.published


@pytest.mark.parametrize(
    ("ranks", "odd", "best_effort", "failed", "published"),
    [
        pytest.param(3, {1}, False, {1}, [], id="one differs"),
        pytest.param(2, {1}, False, {0, 1}, [], id="no majority"),
        pytest.param(4, {1, 2}, True, {0, 1, 2, 3}, [], id="half and half"),
        pytest.param(4, {2}, True, {2}, [0, 1, 3], id="majority goes on"),
    ],
)
def test_rank_whose_output_differs_does_not_publish(
    ranks: int, odd: set[int], best_effort: bool, failed: set[int], published: list[int]
) -> None:
    async def wait_for_failed(one: BuildRanks) -> None:
        await one.run()
        async with asyncio.timeout(20):
            while one.errors.keys() != failed or len(one.published) < len(published):  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    case = BuildCase(ranks, odd=frozenset(odd), best_effort=best_effort)
    with ranks_of(case) as found:

        async def run() -> None:
            try:
                await wait_for_failed(found)
                await asyncio.sleep(0.05)
            finally:
                await found.close()

        asyncio.run(run())
    assert found.errors.keys() == failed
    assert sorted(found.published) == published
    message = str(next(iter(found.errors.values())))
    assert "different files of image" in message
    assert "; another: rank" in message


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.binary(min_size=16, max_size=16))
def test_trailer_round_trips(layer: int, size: int, fingerprint: bytes) -> None:
    trailer = Trailer(layer, size, fingerprint, size, fingerprint)
    assert Trailer.parse(trailer.to_bytes()) == trailer
    with pytest.raises(ValueError, match="trailer"):
        Trailer.parse(b"xxxx" + trailer.to_bytes()[4:])


@given(st.binary(max_size=50), st.integers(0, HEADER_SIZE + 49), st.integers(1, 255), st.none() | st.integers(0, 99))
def test_frame_is_intact_only_if_unchanged(content: bytes, at: int, change: int, total: int | None) -> None:
    memory = bytearray(HEADER_SIZE + len(content))
    memory[HEADER_SIZE:] = content
    frame = Frame(1, 2, FrameKind.ARTIFACT, 3, 4, 5, 6, len(content), total)
    frame.pack(memoryview(memory))
    assert Frame.unpack(memoryview(memory)) == frame
    assert Frame.is_intact(memoryview(memory))
    if at < len(memory) and not 60 <= at < HEADER_SIZE:  # unused bytes of the header
        memory[at] ^= change
        assert not Frame.is_intact(memoryview(memory))
