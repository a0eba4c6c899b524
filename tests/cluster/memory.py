"""Ranks in one process: a fabric of queues whose ranks can die, and whose frames can be damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastpull.cluster.transport.fabric import HEADER_SIZE, OnFrame, OnMessage

_BUFFERS = 2


class Hub:
    """The fabrics of several ranks, connected.

    Attributes:
        fabrics: the fabrics, by rank.
        dead: ranks that neither send nor receive.
        spoil: may change a frame in transit; receives (from, to, frame).
    """

    def __init__(self, size: int, nodes: list[int] | None = None) -> None:
        self.fabrics = [MemoryFabric(self, rank, size, nodes[rank] if nodes else rank) for rank in range(size)]
        self.dead = set[int]()
        self.spoil: Callable[[int, int, bytearray], None] = lambda *_: None
        self.tasks = set[asyncio.Task[None]]()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class MemoryFabric:
    """See `fastpull.cluster.transport.fabric.Fabric`."""

    def __init__(self, hub: Hub, rank: int, size: int, node: int) -> None:
        self.rank, self.size, self.node = rank, size, node
        self._hub = hub
        self._started = asyncio.Event()
        self._buffers = asyncio.Semaphore(_BUFFERS)
        self._queue: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self.left = False

    def start(self, on_message: OnMessage, on_frame: OnFrame, on_error: Callable[[Exception], None]) -> None:
        self._on_message, self._on_frame = on_message, on_frame
        self._started.set()
        self._hub.spawn(self._deliver())

    async def _deliver(self) -> None:
        while True:
            sender, message = await self._queue.get()
            self._on_message(sender, message)

    def send_message(self, to: int, message: bytes) -> None:
        if not {self.rank, to} & self._hub.dead:
            self._hub.fabrics[to]._queue.put_nowait((self.rank, message))

    async def send_frame(self, to: int, frame: memoryview) -> None:
        receiver = self._hub.fabrics[to]
        await receiver._started.wait()
        await receiver._buffers.acquire()
        if {self.rank, to} & self._hub.dead:
            receiver._buffers.release()
            await asyncio.Event().wait()
        copy = bytearray(frame)
        self._hub.spoil(self.rank, to, copy)

        async def deliver() -> None:
            try:
                await receiver._on_frame(self.rank, memoryview(copy))
            finally:
                receiver._buffers.release()

        self._hub.spawn(deliver())

    async def leave(self) -> None:
        self.left = True


def flip(at: int) -> Callable[[int, int, bytearray], None]:
    """Return a function that damages the payload of every frame."""

    def spoil(_: int, __: int, frame: bytearray) -> None:
        frame[HEADER_SIZE + at] ^= 1

    return spoil
