"""The meter: what a layer's thread tells of its chunks, and which stage is the bottleneck."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.telemetry.bottleneck import Bottleneck, find_bottleneck
from fastpull.telemetry.timing import LayerTimer, PullTimer, StageTime
from fastpull.telemetry.trace import Lane, Slices, Stage, Trace, Wait

SECONDS = st.sampled_from([0.0, 0.00003, 0.0005, 0.004, 0.03, 1.0])


class Watched:
    """A watch on a clock that the test moves."""

    def __init__(self, *, hashes: bool = False) -> None:
        stages = [Stage.READ, Stage.INFLATE, Stage.WRITE, Stage.HASH][: 4 if hashes else 3]
        self.slices = [Slices() for _ in stages]
        self.lanes = [Lane(stage, slices) for stage, slices in zip(stages, self.slices, strict=True)]
        self.now = 1000.0
        self.watch = LayerTimer(self.lanes, self.now, 0.0)

    def pass_by(self, seconds: float) -> float:
        self.now += seconds
        return self.now

    def chunk(self, asked: float, read: float, inflate: float, hand: float, pool: float, write: float) -> None:
        start, got, hashed = self.now, self.pass_by(asked), self.pass_by(read)
        self.watch.read(start, got, hashed, may_wait=True)
        inflated, handed = self.pass_by(inflate), self.pass_by(hand)
        if pool:
            self.watch.waited(self.now, self.pass_by(pool))
        self.watch.step(inflated, handed, self.pass_by(write))

    def waited(self) -> dict[Wait, float]:
        return {wait: seconds for lane in self.lanes for wait, seconds in lane.waits.items()}


@given(st.lists(st.tuples(*[SECONDS] * 6), max_size=40), st.booleans())
def test_every_second_of_a_layer_thread_is_counted_once(chunks: list[tuple[float, ...]], hashes: bool) -> None:
    watched = Watched(hashes=hashes)
    for chunk in chunks:
        watched.chunk(*chunk)
    watched.watch.flush(watched.now)
    asked, read, inflate, hand, pool, write = (
        (sum(column) for column in zip(*chunks, strict=True)) if chunks else [0] * 6
    )
    copied = sum(chunk[0] for chunk in chunks if chunk[0] < 0.001)
    busy = [lane.busy_seconds for lane in watched.lanes]
    assert busy == pytest.approx([read + copied, inflate, write, *([hand] if hashes else [])], abs=1e-6)
    expected = {Wait.BYTES: asked - copied, Wait.HASH: 0.0 if hashes else hand, Wait.COMPRESS: pool}
    waited = watched.waited()
    assert [waited.get(wait, 0.0) for wait in expected] == pytest.approx(list(expected.values()), abs=1e-6)
    for slices in watched.slices:
        spans = list(slices)
        assert all(one.stop <= other.start for one, other in pairwise(spans))


def test_long_wait_is_a_separate_slice() -> None:
    watched = Watched()
    for _ in range(100):
        watched.chunk(0.0, 0.0001, 0.0003, 0.0, 0.0, 0.0001)
    watched.chunk(5.0, 0.0001, 0.0003, 0.0, 0.0, 0.0001)
    for _ in range(100):
        watched.chunk(0.0, 0.0001, 0.0003, 0.0, 0.0, 0.0001)
    watched.watch.flush(watched.now)
    waits = [span for span in watched.slices[0] if span.waited_seconds]
    assert len(waits) == 1
    assert [waits[0].busy_seconds, waits[0].waited_seconds] == pytest.approx([0.0, 5.0])
    assert max(span.stop - span.start for span in watched.slices[1]) < 0.05


def test_reads_without_inflating_are_counted() -> None:
    watched = Watched()
    for _ in range(1000):
        start, got = watched.now, watched.pass_by(0.00003)
        watched.watch.read(start, got, watched.pass_by(0.0001), may_wait=True)
    assert 4 < len(list(watched.slices[0])) < 10


def test_reads_of_cached_blob_count_no_waiting() -> None:
    watched = Watched()
    start, got = watched.now, watched.pass_by(0.5)
    watched.watch.read(start, got, watched.pass_by(0.1), may_wait=False)
    watched.watch.flush(watched.now)
    assert watched.waited() == {}
    assert watched.lanes[0].busy_seconds == pytest.approx(0.6)


def test_concurrent_work_uses_separate_lanes() -> None:
    trace = Trace()
    meter = PullTimer(trace)
    part, both = meter.layer(0, "layer 1"), threading.Barrier(2)

    def compress() -> None:
        for _ in range(3):
            with part.timed(Stage.COMPRESS):
                both.wait(10)

    threads = [threading.Thread(target=compress) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(part.lanes) == 2
    assert meter.layer(0) is part
    names = [event["args"]["name"] for event in trace.document()["traceEvents"] if event["name"] == "thread_name"]
    assert names == ["compressing", "compressing 2"]
    assert set(meter.stages()) == {Stage.COMPRESS}


def test_without_trace_no_slices_are_kept() -> None:
    part = PullTimer().layer(0)
    with part.timed(Stage.HASH):
        pass
    assert [(lane.is_used, lane._slices) for lane in part.lanes] == [(True, None)]


def test_failed_work_is_counted() -> None:
    part = PullTimer().image
    with pytest.raises(ValueError, match="broken"), part.timed(Stage.PLAN):
        raise ValueError("broken")
    assert [lane.stage for lane in part.lanes if lane.is_used] == [Stage.PLAN]


# --- the bottleneck


def found(
    stages: Mapping[Stage, tuple[float, float]], waits: Mapping[Wait, float] | None = None, cores: int = 2
) -> Bottleneck:
    times = {stage: StageTime(*taken) for stage, taken in stages.items()}
    bottleneck = find_bottleneck(times, waits or {}, layers_seconds=8.0, seconds=10.0, cores=cores)
    assert bottleneck is not None
    return bottleneck


def test_with_busy_cores_bottleneck_is_stage_with_most_cpu() -> None:
    # the layer's thread inflates for 8 seconds of the clock, and is kept from running for half of them
    bottleneck = found({Stage.INFLATE: (8.0, 4.0), Stage.COMPRESS: (30.0, 13.0)})
    assert str(bottleneck) == "most time went to compressing (65% of 2 cores for 10.0 s)"


def test_with_idle_cores_bottleneck_is_stage_of_layer_threads() -> None:
    bottleneck = found({Stage.READ: (1.0, 1.0), Stage.INFLATE: (7.0, 7.0), Stage.MERGE: (2.0, 2.0)}, cores=16)
    assert str(bottleneck) == "most time went to inflating (70% of 10.0 s, 1.0 of 16 cores used)"


@pytest.mark.parametrize(
    ("wait", "stage"), [(Wait.BYTES, "downloading"), (Wait.HASH, "hashing"), (Wait.COMPRESS, "compressing")]
)
def test_awaited_stage_is_the_bottleneck(wait: Wait, stage: str) -> None:
    bottleneck = found({Stage.INFLATE: (2.0, 2.0)}, {wait: 6.0}, cores=4)
    assert bottleneck.stage == stage
    assert bottleneck.share == pytest.approx(0.6)


def test_waiting_for_a_thread_is_no_bottleneck() -> None:
    assert found({Stage.INFLATE: (2.0, 2.0)}, {Wait.TURN: 50.0}).stage == "inflating"


def test_stages_after_layers_count_in_full() -> None:
    assert found({Stage.INFLATE: (16.0, 2.0), Stage.COMMIT: (9.0, 2.0)}).stage == "finishing the output"


def test_empty_pull_has_no_bottleneck() -> None:
    assert find_bottleneck({}, {}, layers_seconds=0.0, seconds=0.0, cores=2) is None
