"""Traces: spans become slices and events, and nothing is lost on the way."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.telemetry.trace import Lane, Slices, Span, Stage, Trace, Wait


@st.composite
def timelines(draw: st.DrawFn) -> list[Span]:
    """Spans of one lane, one behind the other, with gaps or without."""
    spans, now = [], 0.0
    for _ in range(draw(st.integers(0, 200))):
        now += draw(st.sampled_from([0.0, 0.0, 0.0001, 0.01, 3.0]))
        length = draw(st.sampled_from([0.00001, 0.0003, 0.005, 0.019, 0.3, 20.0]))
        busy = draw(st.floats(0, length))
        wait = draw(st.sampled_from(Wait)) if busy < length else Wait.NOTHING
        spans.append(Span(now, now + length, busy, busy / 2, length - busy, wait, draw(st.integers(0, 1 << 30))))
        now += length
    return spans


def sliced(spans: Iterable[Span], **options: float) -> list[Span]:
    slices = Slices(**options)  # type: ignore[arg-type]
    for span in spans:
        slices.add(span)
    return list(slices)


@pytest.mark.slow
@given(timelines(), st.sampled_from([2, 8, 1024]))
def test_slices_keep_the_totals_of_their_spans(spans: list[Span], most: int) -> None:
    slices = sliced(spans, max_slices=most)
    assert len(slices) <= most
    for name in ("busy_seconds", "cpu_seconds", "waited_seconds"):
        totals = [sum(getattr(span, name) for span in found) for found in (spans, slices)]
        assert totals[0] == pytest.approx(totals[1])
    assert sum(span.size for span in spans) == sum(span.size for span in slices)
    assert [span.start for span in spans[:1]] == [span.start for span in slices[:1]]
    assert [span.stop for span in spans[-1:]] == [span.stop for span in slices[-1:]]


@pytest.mark.slow
@given(timelines(), st.sampled_from([2, 8, 1024]))
def test_slices_never_overlap(spans: list[Span], most: int) -> None:
    slices = sliced(spans, max_slices=most)
    assert all(span.start <= span.stop for span in slices)
    assert all(one.stop <= other.start for one, other in pairwise(slices))


def test_spans_within_a_grain_are_one_slice() -> None:
    assert len(sliced(Span(at / 1000, (at + 1) / 1000, 0.001) for at in range(1000))) in range(50, 60)
    assert len(sliced([Span(0, 0.001, 0.001), Span(5, 5.001, 0.001)])) == 2


def test_slice_is_named_by_its_longer_wait() -> None:
    one, other = (Span(0, 1, waited_seconds=0.2, wait=Wait.HASH), Span(1, 2, waited_seconds=0.3, wait=Wait.BYTES))
    assert one.joined(other).wait is Wait.BYTES


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 5)), max_size=50))
def test_overlapping_span_is_shortened_and_keeps_its_work(times: list[tuple[float, float]]) -> None:
    slices = Slices()
    lane = Lane(Stage.READ, slices)
    for start, length in times:
        lane.work(start, start + length)
        lane.wait(start, start + length, Wait.TURN)
    spans = list(slices)
    assert all(one.stop <= other.start for one, other in pairwise(spans))
    total = sum((start + length) - start for start, length in times)
    assert sum(span.busy_seconds for span in spans) == pytest.approx(total)


def test_document_has_lane_names_and_microseconds() -> None:
    trace = Trace()
    group = trace.add_group("layer 1 of 1")
    read, second = (Lane(Stage.READ, group.add_lane(Stage.READ)) for _ in range(2))
    fetch = Lane(Stage.DOWNLOAD, group.add_lane(Stage.DOWNLOAD))
    fetch.work(100.0, 101.0, size=5)
    read.wait(100.5, 101.5, Wait.BYTES)
    read.work(101.5, 102.0, cpu_seconds=0.25)
    second.work(103.0, 103.5)
    document = json.loads(json.dumps(trace.document()))
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] in ("process_name", "thread_name")
    }
    assert names == {
        (1, 0): "layer 1 of 1",
        (1, 1): "downloading",
        (1, 2): "reading and verifying",
        (1, 3): "reading and verifying 2",
    }
    spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
    assert [(span["name"], span["cat"], span["ts"], span["dur"], span["tid"]) for span in spans] == [
        ("downloading", "work", 0, 1_000_000, 1),
        ("waiting for bytes", "wait", 500_000, 1_000_000, 2),
        ("reading and verifying", "work", 1_500_000, 500_000, 2),
        ("reading and verifying", "work", 3_000_000, 500_000, 3),
    ]
    assert [span["args"] for span in spans[:3]] == [
        {"busy": 1.0, "bytes": 5},
        {"waiting": 1.0, "for": "waiting for bytes"},
        {"busy": 1.0, "cpu": 0.5},
    ]


def test_lanes_are_ordered_and_numbered_by_stage() -> None:
    trace = Trace()
    group = trace.add_group("layer")
    for stage in (Stage.APPEND, Stage.STORE, Stage.APPEND, Stage.STORE):
        group.add_lane(stage)
    names = [event["args"]["name"] for event in trace.document()["traceEvents"] if event["name"] == "thread_name"]
    assert names == ["storing", "storing 2", "storing blocks", "storing blocks 2"]


def test_an_empty_trace_is_a_document() -> None:
    assert Trace().document()["traceEvents"] == []
