"""Who brings what: every stretch that somebody lacks is brought once, by a rank that may."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.cluster.blobs.plan import (
    MIB,
    STRETCH_SIZE,
    DistributionPlan,
    Holding,
    cut,
    from_bits,
    next_ranks,
    receivers,
    to_bits,
)
from tests.cluster.strategies import holdings


@given(st.lists(st.integers(0, 200 * MIB), max_size=6), st.integers(1, 600))
def test_stretches_cover_every_blob_without_overlap(sizes: list[int], ranks: int) -> None:
    stretches = cut(sizes, ranks)
    assert [one.number for one in stretches] == list(range(len(stretches)))
    for blob, size in enumerate(sizes):
        parts = [(one.start, one.stop) for one in stretches if one.blob == blob]
        assert [start for start, _ in parts] == [0, *(stop for _, stop in parts)][: len(parts)]
        assert (parts[-1][1] if parts else 0) == size
        assert all(0 < stop - start <= STRETCH_SIZE for start, stop in parts)


def test_the_largest_blob_comes_first_and_small_images_are_cut_for_all() -> None:
    stretches = cut([3 * MIB, 64 * MIB], 8)
    assert [one.blob for one in stretches][-2:] == [0, 0]
    assert len(stretches) >= 4 * 8


@given(st.data())
def test_whoever_asks_when_every_stretch_is_brought_once_by_one_who_may(data: st.DataObject) -> None:
    held = data.draw(holdings())
    count = len(next(iter(held.values())).has)
    stretches = cut([MIB] * count, 1)
    plan = DistributionPlan(stretches, held)
    taken: dict[int, int] = {}
    asking = list(held)
    while asking:
        rank = data.draw(st.sampled_from(asking))
        number = plan.take(rank)
        if number is None:
            asking.remove(rank)
        else:
            assert number not in taken
            taken[number] = rank
            assert plan.debtors()[rank]
            if data.draw(st.booleans()):
                plan.bring(number)
    for number in range(count):
        holders = {rank for rank, holding in held.items() if holding.has[number]}
        wanting = receivers(held, stretches[number])
        assert (number in taken) == bool(wanting)
        if wanting:
            assert taken[number] in (holders or set(wanting))


@given(st.integers(0, 40), st.sets(st.integers(0, 40)), st.integers(0, 1000), st.integers(1, 41))
def test_every_rank_that_lacks_a_window_gets_it_once(origin: int, wanting: set[int], turn: int, fan_out: int) -> None:
    wanting -= {origin}
    got, front = Counter[int](), [origin]
    while front:
        sent = [to for rank in front for to in next_ranks(rank, origin, sorted(wanting), turn, fan_out)]
        got.update(sent)
        front = sent
    assert got == dict.fromkeys(wanting, 1)


def test_a_rank_that_has_a_window_already_sends_none_on() -> None:
    assert next_ranks(5, 0, [1, 2], 0, 1) == []


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_in_a_chain_all_send_about_as_much_as_they_get(ranks: int) -> None:
    sent = Counter[int]()
    wanting = list(range(1, ranks))
    for turn in range(10 * ranks):
        for rank in range(ranks):
            sent[rank] += len(next_ranks(rank, 0, wanting, turn, 1))
    assert sent[0] == 10 * ranks
    assert max(sent.values()) == 10 * ranks
    if ranks > 2:
        others = [sent[rank] for rank in wanting]
        assert max(others) - min(others) <= 10 + ranks


@given(st.lists(st.booleans(), max_size=100))
def test_holdings_survive_their_way(values: list[bool]) -> None:
    assert from_bits(to_bits(values), len(values)) == tuple(values)


def test_a_rank_that_wants_nothing_fetches_nothing() -> None:
    held = {0: Holding((False,), frozenset()), 1: Holding((False,), frozenset({0}))}
    plan = DistributionPlan(cut([MIB], 2), held)
    assert plan.take(0) is None
    assert plan.take(1) == 0
