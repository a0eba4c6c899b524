"""The thread of the MPI fabric ends with its event loop, with any MPI library."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fastpull.cluster.transport.mpi import MpiFabric


class FakeWorld:
    """A communicator of one rank that sends a message after a number of polls."""

    def __init__(self, polls: int = 0) -> None:
        self.polls = polls
        self.sent: list[bytes] = []

    def Improbe(self, *_: Any) -> None:  # noqa: N802  # mpi4py's name
        return None

    def Isend(self, data: list[Any], *_: Any) -> Any:  # noqa: N802  # mpi4py's name
        def test() -> bool:
            self.polls -= 1
            if self.polls < 0:
                self.sent.append(bytes(data[0]))
            return self.polls < 0

        return SimpleNamespace(Test=test)


class FailingFabric(MpiFabric):
    """A fabric without an MPI library; counts calls of MPI_Finalize."""

    def __init__(self, world: FakeWorld) -> None:
        super().__init__()
        self._world: Any = world
        self.finalized = 0

    def _initialize(self) -> None:
        self._mpi: Any = SimpleNamespace(Status=object, BYTE=0, ANY_SOURCE=-1, Finalize=self._finalize)

    def _finalize(self) -> None:
        self.finalized += 1


async def no_frame(_: int, __: memoryview) -> None:
    raise AssertionError


def ignore(*_: Any) -> None:
    pass


@pytest.mark.parametrize("starts", [True, False], ids=["while it serves", "before it serves"])
def test_thread_ends_when_its_loop_is_closed(starts: bool) -> None:
    async def run() -> FailingFabric:
        fabric = FailingFabric(FakeWorld())
        await fabric.open(10)
        if starts:
            fabric.start(ignore, no_frame, ignore)
        return fabric

    fabric = asyncio.run(run())
    fabric._thread.join(10)
    assert not fabric._thread.is_alive()
    assert fabric.finalized == 0, "MPI_Finalize would wait for the other ranks"


def test_queued_messages_are_sent_after_the_loop_is_closed() -> None:
    world = FakeWorld(polls=50)

    async def run() -> FailingFabric:
        fabric = FailingFabric(world)
        await fabric.open(10)
        fabric.start(ignore, no_frame, ignore)
        fabric.send_message(0, b"broken")
        return fabric

    asyncio.run(run())._thread.join(10)
    assert world.sent == [b"broken"]


def test_unsent_message_does_not_keep_the_thread() -> None:
    async def run() -> FailingFabric:
        fabric = FailingFabric(FakeWorld(polls=10**9))
        await fabric.open(10)
        fabric.start(ignore, no_frame, ignore)
        fabric.send_message(0, b"lost")
        return fabric

    fabric = asyncio.run(run())
    fabric._thread.join(10)
    assert not fabric._thread.is_alive()


async def test_leave_finalizes_mpi() -> None:
    fabric = FailingFabric(FakeWorld())
    await fabric.open(10)
    fabric.start(ignore, no_frame, ignore)
    await fabric.leave()
    assert fabric.finalized == 1
