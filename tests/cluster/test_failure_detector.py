"""The failure detector, with a clock that the tests advance."""

from __future__ import annotations

import pytest

from fastpull.cluster.control.failure_detector import FailureDetector, Suspects
from fastpull.cluster.messages import TaskProgress


class ManualClock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def detector(clock: ManualClock) -> FailureDetector:
    return FailureDetector(3, 60, 300, clock)


def keep_alive(detector: FailureDetector, *ranks: int) -> None:
    for rank in ranks:
        detector.heard_from(rank)


def test_silent_ranks_are_suspect_after_the_timeout(detector: FailureDetector, clock: ManualClock) -> None:
    clock.now += 60
    assert detector.find_suspects([0, 1, 2]) is None
    clock.now += 1
    keep_alive(detector, 0, 2)
    assert detector.find_suspects([0, 1, 2]) == Suspects((1,), 60, "the job went on")
    assert detector.find_suspects([0, 2]) is None, "rank 1 is dropped"


def test_awaited_ranks_are_suspect_after_a_stall(detector: FailureDetector, clock: ManualClock) -> None:
    with detector.expecting(lambda: [1, 2], "all waited"), detector.expecting(list, "nothing was missing"):
        clock.now += 301
        keep_alive(detector, 0, 1, 2)
        assert detector.find_suspects([0, 2]) == Suspects((2,), 300, "all waited")
        assert detector.find_suspects([0]) is None, "the interval begins again"


def test_the_innermost_wait_that_misses_a_rank_counts(detector: FailureDetector, clock: ManualClock) -> None:
    with detector.expecting(lambda: [1], "outer"), detector.expecting(lambda: [2], "inner"):
        clock.now += 301
        keep_alive(detector, 0, 1, 2)
        assert detector.find_suspects([0, 1, 2]) == Suspects((2,), 300, "inner")


def test_only_a_change_of_progress_prevents_a_stall(detector: FailureDetector, clock: ManualClock) -> None:
    with detector.expecting(lambda: [1], "all waited"):
        for arrived, is_change in ((1, True), (1, False), (2, True)):
            clock.now += 200
            keep_alive(detector, 0, 1, 2)
            assert detector.report_progress(1, TaskProgress(0, 0, arrived, 0, 0)) is is_change
        assert detector.find_suspects([1]) is None
        assert not detector.report_progress(1, None)
        clock.now += 301
        keep_alive(detector, 1)
        assert detector.find_suspects([1]) is not None


def test_a_stall_without_waits_suspects_no_rank(detector: FailureDetector, clock: ManualClock) -> None:
    clock.now += 1000
    keep_alive(detector, 0, 1, 2)
    assert detector.find_suspects([0, 1, 2]) is None


def test_reset_begins_all_intervals_again(detector: FailureDetector, clock: ManualClock) -> None:
    clock.now += 1000
    detector.reset()
    with detector.expecting(lambda: [1], "all waited"):
        assert detector.find_suspects([0, 1, 2]) is None


@pytest.mark.parametrize(("timeout", "stall", "expected"), [(60, 300, 1.0), (5, 300, 0.5), (60, 2, 0.2)])
def test_ten_heartbeats_fit_into_each_timeout(timeout: float, stall: float, expected: float) -> None:
    assert FailureDetector(1, timeout, stall).heartbeat_seconds == pytest.approx(expected)
