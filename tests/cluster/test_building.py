"""Whoever makes what, and whoever drops out, all the others end with all products, and publish together."""

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
from fastpull.cluster.transport.fabric import HEADER_SIZE, OnWindow
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
    """What happens to the ranks.

    Attributes:
        ranks: how many there are.
        fan_out: of the tree.
        dropped: ranks that fail, after so many windows that they got; 0 before they make anything, below 0 after so
            many products that they have made.
        restarts: layers whose maker finds the blob damaged, and begins anew.
        best_effort: go on without who has made something else.
        odd: ranks that make something else in the end.
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
        self.councils = [ControlChannel(fabric, f"n{fabric.rank}", terms) for fabric in self.hub.fabrics]
        self.errors: dict[int, FastpullError] = {}
        self.fetched: list[tuple[int, int]] = []
        self.windows = dict.fromkeys(range(case.ranks), 0)
        self.published: list[int] = []
        self.left = dict(case.dropped)
        self.exchanges: dict[int, Exchange] = {}
        self.buildings: dict[int, BuildMember] = {}
        self.products: dict[int, list[LayerArtifact]] = {}
        self.work: dict[int, asyncio.Task[None]] = {}

    def begin(self, rank: int) -> None:
        council = self.councils[rank]
        store, shelves = Store(f"{self.folder}/{rank}"), []
        for blob in BLOBS:
            lock = store.lock(blob.digest)
            assert lock.try_acquire()
            shelves.append(LocalBlob(blob, None, store.begin(blob.digest, blob.size, lock)))
        self.products[rank] = products = [LayerArtifact(layer, f"layer {layer}", fail) for layer in range(len(LAYERS))]
        for product in products:
            product.open(FileRegion(self.open(), 100), FileRegion(self.open()))
        post = Sender(0, council, self.executor, note := partial(self.note, rank))
        weights = [len(CONTENTS[blob]) for blob in LAYERS]
        building = BuildMember(0, "image", products, weights, council, post, self.executor)
        self.buildings[rank] = building
        self.exchanges[rank] = Exchange(
            0, shelves, self.case.ranks, council, post, self.executor, note,
            wants=True, building=building, find_room=self.no_room, fetch=self.fetch,
        )  # fmt: skip
        council.start(self.on_window(rank))
        self.work[rank] = asyncio.ensure_future(self.build(rank, building, products))

    def note(self, rank: int, error: FastpullError) -> None:
        self.errors.setdefault(rank, error)

    def open(self) -> int:
        fd, path = tempfile.mkstemp(dir=self.folder)
        os.unlink(path)
        return fd

    async def no_room(self, _: LocalBlob) -> None:
        raise AssertionError("all shelves have files")

    async def fetch(self, blob: int, tap: RangeTarget, _: bool) -> None:
        for start, stop in tap.gaps():
            await in_thread(self.executor, tap.write, start, [CONTENTS[blob][start:stop]])
            self.fetched.append((start, stop))

    async def build(self, rank: int, building: BuildMember, products: list[LayerArtifact]) -> None:
        async def one(layer: int) -> None:
            if await building.is_mine(layer):
                await in_thread(self.executor, self.make, products[layer])
                await building.finish(layer)
                if self.left.get(rank, 0) < 0:
                    self.left[rank] += 1
                    if not self.left[rank]:
                        self.hub.spawn(self.drop(rank))

        async with task_group() as group:
            for layer in range(len(LAYERS)):
                group.create_task(one(layer))
        await building.gathered()
        try:
            await building.agree("odd" if rank in self.case.odd else "even")
        except OutputDiffers as error:
            self.errors[rank] = error
            if self.case.best_effort:
                self.hub.spawn(self.drop(rank))
            return
        self.published.append(rank)

    def make(self, product: LayerArtifact) -> None:
        layer = product.layer
        if layer in self.case.restarts:
            self.write(product, bytes(len(BULKS[layer]) + 5), b"wrong")
        self.write(product, BULKS[layer], RESTS[layer])

    def write(self, product: LayerArtifact, *contents: bytes) -> None:
        fds = self.open(), self.open()
        product.open(FileRegion(fds[0], 7), FileRegion(fds[1]))
        product.make()
        for file, (fd, content, base) in enumerate(zip(fds, contents, (7, 0), strict=True)):
            for at in range(0, len(content), STEP):
                piece = content[at : at + STEP]
                os.pwrite(fd, piece, base + at)
                product.grow(file, at + len(piece))
            os.close(fd)

    def on_window(self, rank: int) -> OnWindow:
        async def on_window(sender: int, memory: memoryview) -> None:
            if rank in self.exchanges:
                self.windows[rank] += 1
                await self.exchanges[rank].receive(sender, Frame.open(memory), memory)
                if self.windows[rank] == self.left.get(rank):
                    self.hub.spawn(self.drop(rank))

        return on_window

    async def drop(self, rank: int) -> None:
        if rank in self.exchanges:
            self.work.pop(rank).cancel()
            await self.exchanges.pop(rank).close()
            self.chair.drop(rank)

    async def run(self) -> None:
        sizes = [len(content) for content in CONTENTS]
        self.chair = ExchangeCoordinator(0, sizes, self.case.ranks, range(self.case.ranks), self.councils[0], LAYERS)
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
        self.chair.close()
        for task in self.work.values():
            task.cancel()
        for exchange in list(self.exchanges.values()):
            await exchange.close()
        for council in self.councils:
            await council.stop()
        for one in list(self.hub.tasks):
            one.cancel()
        await asyncio.gather(*self.hub.tasks, *self.work.values(), return_exceptions=True)


@contextmanager
def ranks_of(case: BuildCase) -> Iterator[BuildRanks]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, ThreadPoolExecutor(4) as executor:
        yield BuildRanks(case, folder, executor)


def build(case: BuildCase, spoil: Callable[[int, int, bytearray], None] | None = None) -> BuildRanks:
    """Runs a case; what the products of the ranks hold in the end is compared, where nothing is spoiled."""
    with ranks_of(case) as ranks:

        async def run() -> None:
            if spoil is not None:
                ranks.hub.spoil = spoil
            try:
                await ranks.run()
                if not ranks.errors:
                    for rank in ranks.exchanges:
                        check(ranks.products[rank])
            finally:
                await ranks.close()

        asyncio.run(run())
        return ranks


def check(products: list[LayerArtifact]) -> None:
    for product, bulk, rest in zip(products, BULKS, RESTS, strict=True):
        assert product.is_complete
        for file, content in zip(product.files, (bulk, rest), strict=True):
            buffer = bytearray(len(content))
            assert file.read(memoryview(buffer), 0, product.edition)
            assert buffer == content


@given(cases())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(BuildCase(2))
@example(BuildCase(4, 1, restarts=frozenset(range(len(LAYERS)))))
@example(BuildCase(4, 2, {1: 0, 2: 2}))
@example(BuildCase(5, 3, {1: -1, 3: -2}))
def test_all_who_are_left_have_all_products_and_publish_together(case: BuildCase) -> None:
    ranks = build(case)
    assert not ranks.errors
    assert set(ranks.published) >= ranks.exchanges.keys()
    if not case.dropped:
        made = [layer for building in ranks.buildings.values() for layer in building.made]
        assert sorted(made) == list(range(len(LAYERS))), "each once"
        assert sum(stop - start for start, stop in ranks.fetched) == sum(map(len, CONTENTS))


def of_a_product(at: int, *, is_sealed: bool) -> Callable[[int, int, bytearray], None]:
    """Damages the windows of the first layer's blocks; with a seal that fits, as a faulty relay would."""

    def spoil(_: int, __: int, memory: bytearray) -> None:
        window = Frame.open(memoryview(memory))
        if window.kind is FrameKind.PRODUCT and window.item == 0:
            memory[HEADER_SIZE + at] ^= 1
            if is_sealed:
                window.seal(memoryview(memory))

    return spoil


@pytest.mark.parametrize(("is_sealed", "expected"), [(False, FrameDamaged), (True, LayerBlocksDamaged)])
def test_what_was_changed_on_its_way_is_not_taken(is_sealed: bool, expected: type[FastpullError]) -> None:
    ranks = build(BuildCase(2), of_a_product(5, is_sealed=is_sealed))
    [(rank, error)] = ranks.errors.items()
    assert isinstance(error, expected)
    assert not ranks.products[rank][0].is_complete
    assert not ranks.published


@pytest.mark.parametrize(
    ("ranks", "odd", "best_effort", "told", "published"),
    [
        pytest.param(3, {1}, False, {1}, [], id="one differs"),
        pytest.param(2, {1}, False, {0, 1}, [], id="nobody is right"),
        pytest.param(4, {1, 2}, True, {0, 1, 2, 3}, [], id="half and half"),
        pytest.param(4, {2}, True, {2}, [0, 1, 3], id="most go on without it"),
    ],
)
def test_who_has_made_something_else_publishes_nothing(
    ranks: int, odd: set[int], best_effort: bool, told: set[int], published: list[int]
) -> None:
    async def wait_for_told(one: BuildRanks) -> None:
        await one.run()
        async with asyncio.timeout(20):
            while one.errors.keys() != told or len(one.published) < len(published):  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    case = BuildCase(ranks, odd=frozenset(odd), best_effort=best_effort)
    with ranks_of(case) as found:

        async def run() -> None:
            try:
                await wait_for_told(found)
                await asyncio.sleep(0.05)
            finally:
                await found.close()

        asyncio.run(run())
    assert found.errors.keys() == told
    assert sorted(found.published) == published
    message = str(next(iter(found.errors.values())))
    assert "different files of image" in message
    assert "that of rank" in message


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.binary(min_size=16, max_size=16))
def test_a_seal_survives_its_way(layer: int, size: int, fingerprint: bytes) -> None:
    seal = Trailer(layer, size, fingerprint, size, fingerprint)
    assert Trailer.of(seal.to_bytes()) == seal
    with pytest.raises(ValueError, match="seal"):
        Trailer.of(b"xxxx" + seal.to_bytes()[4:])


@given(st.binary(max_size=50), st.integers(0, HEADER_SIZE + 49), st.integers(1, 255), st.none() | st.integers(0, 99))
def test_a_window_is_sound_only_as_it_was_sealed(content: bytes, at: int, change: int, total: int | None) -> None:
    memory = bytearray(HEADER_SIZE + len(content))
    memory[HEADER_SIZE:] = content
    window = Frame(1, 2, FrameKind.PRODUCT, 3, 4, 5, 6, len(content), total)
    window.seal(memoryview(memory))
    assert Frame.open(memoryview(memory)) == window
    assert Frame.is_sound(memoryview(memory))
    if at < len(memory) and not 60 <= at < HEADER_SIZE:  # the header has that much room left
        memory[at] ^= change
        assert not Frame.is_sound(memoryview(memory))
