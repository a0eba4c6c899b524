"""The distribution plan: every missing chunk is delivered once, by a rank that may deliver it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.cluster.blobs.plan import (
    CHUNK_SIZE,
    MIB,
    DistributionPlan,
    Holding,
    cut,
    next_ranks,
    receivers,
)
from tests.cluster.strategies import holdings


@given(st.lists(st.integers(0, 200 * MIB), max_size=6), st.integers(1, 600))
def test_chunks_cover_every_blob_without_overlap(sizes: list[int], ranks: int) -> None:
    chunks = cut(sizes, ranks)
    assert [one.number for one in chunks] == list(range(len(chunks)))
    for blob, size in enumerate(sizes):
        parts = [(one.start, one.stop) for one in chunks if one.blob == blob]
        assert [start for start, _ in parts] == [0, *(stop for _, stop in parts)][: len(parts)]
        assert (parts[-1][1] if parts else 0) == size
        assert all(0 < stop - start <= CHUNK_SIZE for start, stop in parts)


def test_largest_blob_comes_first_and_small_images_have_a_chunk_for_each_rank() -> None:
    chunks = cut([3 * MIB, 64 * MIB], 8)
    assert [one.blob for one in chunks][-2:] == [0, 0]
    assert len(chunks) >= 4 * 8


@given(st.data())
def test_every_chunk_is_leased_once_in_any_order_of_requests(data: st.DataObject) -> None:
    held = data.draw(holdings())
    count = len(next(iter(held.values())).has)
    chunks = cut([MIB] * count, 1)
    plan = DistributionPlan(chunks, held)
    leased: dict[int, int] = {}
    asking = list(held)
    while asking:
        rank = data.draw(st.sampled_from(asking))
        number = plan.lease(rank)
        if number is None:
            asking.remove(rank)
        else:
            assert number not in leased
            leased[number] = rank
            assert plan.outstanding()[rank]
            if data.draw(st.booleans()):
                plan.mark_delivered(number)
    for number in range(count):
        holders = {rank for rank, holding in held.items() if holding.has[number]}
        wanting = receivers(held, chunks[number])
        assert (number in leased) == bool(wanting)
        if wanting:
            assert leased[number] in (holders or set(wanting))


@given(st.integers(0, 40), st.sets(st.integers(0, 40)), st.integers(0, 1000), st.integers(1, 41))
def test_every_rank_that_lacks_a_frame_gets_it_once(origin: int, wanting: set[int], turn: int, fan_out: int) -> None:
    wanting -= {origin}
    got, front = Counter[int](), [origin]
    while front:
        sent = [to for rank in front for to in next_ranks(rank, origin, sorted(wanting), turn, fan_out)]
        got.update(sent)
        front = sent
    assert got == dict.fromkeys(wanting, 1)


def test_rank_outside_the_tree_forwards_nothing() -> None:
    assert next_ranks(5, 0, [1, 2], 0, 1) == []


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_ranks_of_a_chain_send_about_as_much_as_they_receive(ranks: int) -> None:
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


def test_rank_that_wants_nothing_gets_no_lease() -> None:
    held = {0: Holding((False,), frozenset()), 1: Holding((False,), frozenset({0}))}
    plan = DistributionPlan(cut([MIB], 2), held)
    assert plan.lease(0) is None
    assert plan.lease(1) == 0
