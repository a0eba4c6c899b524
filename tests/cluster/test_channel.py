"""The control channel: every wait ends with the result, or with an error that names the missing ranks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fastpull.cluster.blobs.exchange_coordinator import ExchangeCoordinator
from fastpull.cluster.control.channel import ClusterTerms, ControlChannel
from fastpull.cluster.messages import (
    ChunksHeld,
    JobEnd,
    NewRound,
    RankBroken,
    RankWarned,
    ReadyToLeave,
    TaskProgress,
)
from fastpull.errors import ClusterError, MalformedMessage, RankFailed, RankLost
from tests.cluster.memory import Hub

PATIENT = ClusterTerms(timeout_seconds=60, stall_seconds=60)
SILENCE = ClusterTerms(timeout_seconds=0.6, stall_seconds=60)
STALL = ClusterTerms(timeout_seconds=60, stall_seconds=0.6)


@asynccontextmanager
async def channels(
    size: int, terms: ClusterTerms, best_effort: bool = False
) -> AsyncIterator[tuple[Hub, list[ControlChannel]]]:
    hub = Hub(size)
    terms = ClusterTerms(terms.timeout_seconds, terms.stall_seconds, best_effort)
    found = [ControlChannel(fabric, f"n{fabric.rank}", terms) for fabric in hub.fabrics]

    async def no_frames(_: int, __: memoryview) -> None:
        raise AssertionError("no rank sends a frame")

    for one in found:
        one.hosts = {rank: f"n{rank}" for rank in range(size)}
        one.start(no_frames)
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


def gathering(channel: ControlChannel, code: int, size: int, doing: str) -> asyncio.Task[dict[int, ReadyToLeave]]:
    return asyncio.create_task(channel.gather(ReadyToLeave(code), range(size), doing))


def receiving(channel: ControlChannel) -> asyncio.Task[JobEnd]:
    return asyncio.create_task(channel.receive(JobEnd))


async def test_messages_are_gathered_and_broadcast() -> None:
    async with channels(4, PATIENT) as (_, ranks):
        gathers = [gathering(one, one.rank * 10, 4, "we talked") for one in ranks]
        assert await ended(*gathers) == [{rank: ReadyToLeave(rank * 10) for rank in range(4)}, {}, {}, {}]
        receives = [receiving(one) for one in ranks[1:]]
        ranks[0].broadcast(JobEnd(0, is_whole=True))
        assert await ended(*receives) == [JobEnd(0, is_whole=True)] * 3


async def test_handler_receives_messages_that_arrived_before_it() -> None:
    async with channels(2, PATIENT) as (_, ranks):
        heard: list[tuple[int, Any]] = []
        ranks[1].send(0, RankWarned("a", "b"))
        await asyncio.sleep(0.05)
        ranks[0].on(RankWarned, lambda rank, message: heard.append((rank, message)))
        assert heard == [(1, RankWarned("a", "b"))]


async def test_handler_of_an_image_receives_messages_of_that_image_only() -> None:
    async with channels(2, PATIENT) as (_, ranks):
        heard: list[Any] = []
        ranks[0].on(NewRound, lambda _, message: heard.append(message), image=1)
        for image in (0, 1, 2):
            ranks[1].send(0, NewRound(image, 7))
        await asyncio.sleep(0.05)
        assert heard == [NewRound(1, 7)]


async def test_silent_rank_is_named_on_rank_0_and_ends_the_job_on_all() -> None:
    async with channels(3, SILENCE) as (hub, ranks):
        hub.dead.add(2)
        lost, failed = await ended(gathering(ranks[0], 0, 3, "we talked"), receiving(ranks[1]))
        assert isinstance(lost, RankLost)
        assert str(lost).startswith("no response from rank 2 on n2 for 1 s while we talked")
        assert isinstance(failed, RankFailed)
        assert "rank 2 on n2" in str(failed)


async def test_loss_of_rank_0_ends_the_job_on_every_rank() -> None:
    async with channels(3, SILENCE, best_effort=True) as (hub, ranks):
        hub.dead.add(0)
        for error in await ended(*(receiving(one) for one in ranks[1:])):
            assert isinstance(error, RankLost)
            assert "rank 0 on n0" in str(error)


async def test_best_effort_goes_on_without_a_lost_rank() -> None:
    async with channels(3, SILENCE, best_effort=True) as (hub, ranks):
        lost: list[int] = []
        ranks[0].on_lost = lost.append
        hub.dead.add(1)
        ranks[2].send(0, ReadyToLeave(2))
        gathered = await gathering(ranks[0], 0, 3, "we talked")
        assert gathered == {0: ReadyToLeave(0), 2: ReadyToLeave(2)}
        assert lost == [1]
        assert ranks[0].present == [0, 2]


@pytest.mark.parametrize("best_effort", [False, True])
async def test_rank_that_stalls_the_job_is_lost_though_it_is_alive(best_effort: bool) -> None:
    async with channels(3, STALL, best_effort) as (_, ranks):
        ranks[1].send(0, ReadyToLeave(1))
        [outcome] = await ended(gathering(ranks[0], 0, 3, "we waited"))
        if best_effort:
            assert set(outcome) == {0, 1}
        else:
            assert isinstance(outcome, RankLost)
            assert "rank 2 on n2" in str(outcome)
        with pytest.raises(ClusterError):  # a lost rank that is alive hears of it
            await ranks[2].receive(JobEnd)


async def test_rank_that_makes_progress_is_not_lost() -> None:
    async with channels(2, STALL) as (_, ranks):
        steps = iter(range(10**6))
        ranks[1].progress = lambda: TaskProgress(0, next(steps), 0, 0, 0)
        waiting = gathering(ranks[0], 0, 2, "we waited")
        await asyncio.sleep(2.0)
        assert not waiting.done()
        ranks[1].send(0, ReadyToLeave(1))
        assert await waiting == {0: ReadyToLeave(0), 1: ReadyToLeave(1)}


async def test_shut_down_returns_the_exit_code_of_rank_0_on_all_ranks() -> None:
    async with channels(3, PATIENT) as (_, ranks):
        leaving = [asyncio.create_task(one.shut_down(7 - one.rank)) for one in ranks]
        assert [tuple(one) for one in await ended(*leaving)] == [(7, True)] * 3


async def test_malformed_message_ends_the_job_on_all_ranks() -> None:
    async with channels(3, PATIENT) as (hub, ranks):
        waits = [asyncio.create_task(one.receive(JobEnd)) for one in ranks]
        hub.fabrics[1].send_message(0, b'{"message": "Nonsense"}')
        first, *others = await ended(*waits)
        assert isinstance(first, MalformedMessage)
        assert "malformed message from rank 1 on n1: unknown message 'Nonsense'" in str(first)
        assert all(isinstance(error, RankFailed) for error in others)


async def test_message_that_a_handler_refuses_ends_the_job() -> None:
    async with channels(2, PATIENT) as (_, ranks):
        coordinator = ExchangeCoordinator(0, [1, 1], 2, [0, 1], ranks[0])
        ranks[1].send(0, ChunksHeld(0, 0, (True,) * 3, wants=True))
        with pytest.raises(MalformedMessage, match="rank 1 on n1: ChunksHeld: 3 chunks and 0 layers, expected 2 and 0"):
            await ranks[0].receive(JobEnd)
        with pytest.raises(RankFailed):
            await ranks[1].receive(JobEnd)
        coordinator.close()


async def test_debug_log_names_messages_but_no_heartbeats(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "fastpull.cluster")
    async with channels(2, SILENCE) as (_, ranks):
        ranks[1].send(0, RankWarned("a", "b"))
        await asyncio.sleep(0.2)
    assert [record.getMessage() for record in caplog.records] == ["send RankWarned to rank 0 on n0"]


async def test_malformed_message_of_rank_0_is_reported_to_it() -> None:
    async with channels(2, PATIENT) as (hub, ranks):
        heard: list[str] = []
        ranks[0].on(RankBroken, lambda _, message: heard.append(message.reason))
        hub.fabrics[0].send_message(1, b"no JSON")
        with pytest.raises(MalformedMessage):
            await ranks[1].receive(JobEnd)
        await asyncio.sleep(0.05)
        assert ["malformed message from rank 0 on n0" in reason for reason in heard] == [True]
