from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.registry.download.adaptive import AdaptiveConcurrency
from fastpull.registry.download.download import clipped
from fastpull.registry.download.ranges import FIRST_RANGE, MIB, ContentRange, RangePlan
from fastpull.registry.host_limiter import HostLimiter


@given(
    st.lists(st.tuples(st.integers(0, 200 * MIB), st.integers(1, 100 * MIB)), max_size=5),
    st.lists(st.integers(1, 32).map(lambda mebibytes: mebibytes * MIB), min_size=1, max_size=5),
)
def test_plan_covers_gaps_once_and_in_order(steps: list[tuple[int, int]], sizes: list[int]) -> None:
    gaps, at = [], 0
    for skip, length in steps:
        gaps.append((at + skip, at + skip + length))
        at += skip + length + 1
    plan, taken, number = RangePlan(gaps), [], 0
    while (span := plan.take(size := sizes[number % len(sizes)])) is not None:
        assert 0 < span[1] - span[0] <= size + size // 2
        taken.append(span)
        number += 1
    joined: list[tuple[int, int]] = []
    for start, stop in taken:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    assert joined == gaps


def test_ranges_end_at_mebibyte_boundaries() -> None:
    plan = RangePlan([(5, 40 * MIB)])
    assert plan.take(8 * MIB) == (5, 8 * MIB)
    assert plan.take(8 * MIB) == (8 * MIB, 16 * MIB)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes 0-99/1000", ContentRange(0, 100, 1000)),
        ("bytes 5-5/*", ContentRange(5, 6, None)),
        (" bytes 0-0/1 ", ContentRange(0, 1, 1)),
        ("bytes 10-5/100", None),
        ("bytes 0-100/100", None),
        ("bytes */100", None),
        ("bytes 0-99", None),
        ("items 0-99/100", None),
        ("bytes -5-10/100", None),
        ("bytes 0-" + "9" * 30 + "/*", None),
        ("bytes ٠-٩/١٠", None),
        ("", None),
    ],
)
def test_content_range_is_parsed_or_rejected(header: str, expected: ContentRange | None) -> None:
    assert ContentRange.parse(header) == expected


@given(st.text(max_size=40))
def test_any_content_range_is_consistent_or_rejected(header: str) -> None:
    found = ContentRange.parse(header)
    assert found is None or 0 <= found.start < found.stop <= (found.total or found.stop)


@given(
    st.integers(0, 50),
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 80)).map(lambda pair: (min(pair), max(pair))), max_size=4),
)
def test_clipped_pieces_fill_only_gaps(offset: int, length: int, gaps: list[tuple[int, int]]) -> None:
    piece = bytes(range(length))
    filled = {at + step: byte for at, part in clipped(offset, piece, gaps) for step, byte in enumerate(part)}
    wanted = {at for start, stop in gaps for at in range(start, stop)}
    assert filled == {offset + at: byte for at, byte in enumerate(piece) if offset + at in wanted}


# --- adaptive concurrency


def feed(concurrency: AdaptiveConcurrency, rate: float, seconds: float, start: float) -> float:
    """Simulate receiving at a rate for some time."""
    now = start
    while now < start + seconds:
        now += 0.1
        concurrency.received(int(rate * 0.1), now, busy=True)
    return now


def test_connections_grow_while_throughput_grows() -> None:
    concurrency, now = AdaptiveConcurrency(16), 0.0
    for _ in range(20):
        now = feed(concurrency, 10 * MIB * concurrency.connections, 0.6, now)  # each connection is capped, as with S3
    assert concurrency.connections == 16


@pytest.mark.parametrize(
    ("allowed", "latency", "connections"),
    [(16, 0.0, 6), (16, 0.005, 6), (16, 0.020, 8), (16, 0.080, 14), (16, 1.0, 16), (4, 0.080, 4)],
)
def test_initial_connections_grow_with_latency(allowed: int, latency: float, connections: int) -> None:
    assert AdaptiveConcurrency(allowed, latency).connections == connections


def test_connections_stop_growing_on_saturated_link() -> None:
    concurrency, now = AdaptiveConcurrency(16), 0.0
    for _ in range(20):
        now = feed(concurrency, 100 * MIB, 0.6, now)
    assert concurrency.connections <= 8


_MUCH = 100_000 * MIB


def test_range_size_follows_rate_within_bounds() -> None:
    slow, fast = AdaptiveConcurrency(8), AdaptiveConcurrency(8)
    assert slow.range_size(_MUCH) == FIRST_RANGE
    feed(slow, 100_000, 2, 0)
    feed(fast, 10_000 * MIB, 2, 0)
    assert slow.range_size(_MUCH) == MIB
    assert fast.range_size(_MUCH) == AdaptiveConcurrency.max_range


def test_first_ranges_grow_with_latency() -> None:
    near, far, moon = (AdaptiveConcurrency(16, latency).range_size(_MUCH) for latency in (0.001, 0.080, 2.5))
    assert (near, far, moon) == (FIRST_RANGE, 3 * FIRST_RANGE, AdaptiveConcurrency.max_range)


def test_remaining_bytes_are_shared_among_connections() -> None:
    fast, slow = AdaptiveConcurrency(8), AdaptiveConcurrency(8)
    feed(fast, 10_000 * MIB, 2, 0)
    feed(slow, 100_000, 2, 0)
    each = 12 * MIB
    assert fast.range_size(fast.connections * each) == each
    assert fast.range_size(1) == FIRST_RANGE
    assert slow.range_size(slow.connections * each) == MIB


def test_last_ranges_finish_together() -> None:
    """Each connection takes the next range when it has brought the one before."""
    concurrency, plan = AdaptiveConcurrency(16), RangePlan([(0, 600 * MIB)])
    concurrency.connections = 16
    feed(concurrency, 16 * 30 * MIB, 2, 0)
    free = [0.0] * 16
    while (span := plan.take(concurrency.range_size(plan.left))) is not None:
        start, stop = span
        free.sort()
        free[0] += (stop - start) / (30 * MIB)
    assert max(free) - min(free) < 0.4


def test_burst_of_overload_responses_halves_connections_once() -> None:
    concurrency = AdaptiveConcurrency(16)
    concurrency.connections = 8
    for _ in range(5):
        concurrency.slow_down(now=10.0)
    assert concurrency.connections == 4
    concurrency.slow_down(now=20.0)
    concurrency.slow_down(now=30.0)
    concurrency.slow_down(now=40.0)
    assert concurrency.connections == 1


def test_limiter_repr_shows_connections_rate_and_remaining_bytes() -> None:
    limiter = HostLimiter(16)
    with limiter.planned(RangePlan([(0, 5 * MIB)])):
        assert repr(limiter) == (
            "<HostLimiter <AdaptiveConcurrency 6 of 16 connections, no rate measured>, 1 downloads, "
            "5242880 bytes not yet requested>"
        )
    feed(limiter.concurrency, 10_000_000, 2, 0)
    assert "10.0 MB/s" in repr(limiter)
