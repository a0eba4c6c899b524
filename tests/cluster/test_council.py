"""Waits end: with what was waited for, or with an error that says who is missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fastpull.cluster.control.channel import ClusterTerms, ControlChannel
from fastpull.errors import ClusterError, RankFailed, RankLost
from tests.cluster.memory import Hub

PATIENT = ClusterTerms(timeout_seconds=60, stall_seconds=60)
SILENCE = ClusterTerms(timeout_seconds=0.6, stall_seconds=60)
STALL = ClusterTerms(timeout_seconds=60, stall_seconds=0.6)


@asynccontextmanager
async def councils(
    size: int, terms: ClusterTerms, best_effort: bool = False
) -> AsyncIterator[tuple[Hub, list[ControlChannel]]]:
    hub = Hub(size)
    terms = ClusterTerms(terms.timeout_seconds, terms.stall_seconds, best_effort)
    found = [ControlChannel(fabric, f"n{fabric.rank}", terms) for fabric in hub.fabrics]

    async def no_windows(_: int, __: memoryview) -> None:
        raise AssertionError("nobody sends one")

    for one in found:
        one.hosts = {rank: f"n{rank}" for rank in range(size)}
        one.start(no_windows)
    try:
        async with asyncio.timeout(30):
            yield hub, found
    finally:
        for one in found:
            await one.stop()
        for task in list(hub.tasks):
            task.cancel()


async def ended(*tasks: asyncio.Task[Any]) -> list[Any]:
    return list(await asyncio.gather(*tasks, return_exceptions=True))


async def test_values_are_gathered_and_spread() -> None:
    async with councils(4, PATIENT) as (_, ranks):
        gathers = [asyncio.create_task(one.gather("t", one.rank * 10, range(4), "we talked")) for one in ranks]
        assert await ended(*gathers) == [{0: 0, 1: 10, 2: 20, 3: 30}, {}, {}, {}]
        spreads = [asyncio.create_task(one.spread("s", "x" if one.is_root else None)) for one in ranks]
        assert await ended(*spreads) == ["x"] * 4


async def test_what_was_said_before_somebody_listens_is_heard() -> None:
    async with councils(2, PATIENT) as (_, ranks):
        heard: list[tuple[int, Any]] = []
        ranks[1].post(0, "early", 1)
        await asyncio.sleep(0.05)
        ranks[0].on("early", lambda rank, value: heard.append((rank, value)))
        assert heard == [(1, 1)]


async def test_a_silent_rank_is_named_on_rank_0_and_all_others_give_up() -> None:
    async with councils(3, SILENCE) as (hub, ranks):
        hub.dead.add(2)
        waits = [asyncio.create_task(one.gather("t", 0, range(3), "we talked")) for one in ranks[:1]]
        waits.append(asyncio.create_task(ranks[1].spread("s")))
        lost, failed = await ended(*waits)
        assert isinstance(lost, RankLost)
        assert str(lost).startswith("no response from rank 2 on n2 for 1 s, while we talked")
        assert isinstance(failed, RankFailed)
        assert "rank 2 on n2" in str(failed)


async def test_without_rank_0_each_other_says_so() -> None:
    async with councils(3, SILENCE, best_effort=True) as (hub, ranks):
        hub.dead.add(0)
        for error in await ended(*(asyncio.create_task(one.spread("s")) for one in ranks[1:])):
            assert isinstance(error, RankLost)
            assert "rank 0 on n0" in str(error)


async def test_where_that_was_asked_for_the_others_go_on() -> None:
    async with councils(3, SILENCE, best_effort=True) as (hub, ranks):
        told: list[int] = []
        ranks[0].on_lost = told.append
        hub.dead.add(1)
        ranks[2].post(0, "t", "two")
        assert await ranks[0].gather("t", "zero", range(3), "we talked") == {0: "zero", 2: "two"}
        assert told == [1]
        assert ranks[0].present == [0, 2]


@pytest.mark.parametrize("best_effort", [False, True])
async def test_those_who_hold_up_all_others_are_lost_though_they_live(best_effort: bool) -> None:
    async with councils(3, STALL, best_effort) as (_, ranks):
        ranks[1].post(0, "t")
        waiting = asyncio.create_task(ranks[0].gather("t", None, range(3), "we waited"))
        [outcome] = await ended(waiting)
        if best_effort:
            assert set(outcome) == {0, 1}
        else:
            assert isinstance(outcome, RankLost)
            assert "rank 2 on n2" in str(outcome)
        with pytest.raises(ClusterError):  # it is told, for it can hear
            await ranks[2].spread("s")


async def test_a_rank_that_gets_anywhere_holds_up_nobody() -> None:
    async with councils(2, STALL) as (_, ranks):
        steps = iter(range(10**6))
        ranks[1].progress = lambda: {"there": next(steps)}
        waiting = asyncio.create_task(ranks[0].gather("t", None, range(2), "we waited"))
        await asyncio.sleep(2.0)
        assert not waiting.done()
        ranks[1].post(0, "t")
        assert await waiting == {0: None, 1: None}


async def test_all_leave_with_the_code_of_rank_0() -> None:
    async with councils(3, PATIENT) as (_, ranks):
        parting = [asyncio.create_task(one.part(7 - one.rank)) for one in ranks]
        assert [tuple(one) for one in await ended(*parting)] == [(7, True)] * 3
