"""Ranks in one process: a fabric of queues, whose ranks can die and whose windows can be damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastpull.cluster.transport.fabric import HEADER_SIZE, OnMessage, OnWindow

_BUFFERS = 2


class Hub:
    """Joins the fabrics of so many ranks.

    Attributes:
        fabrics: by rank.
        dead: ranks that nothing reaches, and of which nothing comes.
        spoil: may change a window on its way; gets (from, to, window).
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

    def start(self, on_message: OnMessage, on_window: OnWindow, on_error: Callable[[Exception], None]) -> None:
        self._on_message, self._on_window = on_message, on_window
        self._started.set()
        self._hub.spawn(self._deliver())

    async def _deliver(self) -> None:
        while True:
            sender, message = await self._queue.get()
            self._on_message(sender, message)

    def post(self, to: int, message: bytes) -> None:
        if not {self.rank, to} & self._hub.dead:
            self._hub.fabrics[to]._queue.put_nowait((self.rank, message))

    async def send(self, to: int, window: memoryview) -> None:
        receiver = self._hub.fabrics[to]
        await receiver._started.wait()
        await receiver._buffers.acquire()
        if {self.rank, to} & self._hub.dead:
            receiver._buffers.release()
            await asyncio.Event().wait()
        copy = bytearray(window)
        self._hub.spoil(self.rank, to, copy)

        async def hand_over() -> None:
            try:
                await receiver._on_window(self.rank, memoryview(copy))
            finally:
                receiver._buffers.release()

        self._hub.spawn(hand_over())

    async def leave(self) -> None:
        self.left = True


def flip(at: int) -> Callable[[int, int, bytearray], None]:
    """Damages the bytes of every window."""

    def spoil(_: int, __: int, window: bytearray) -> None:
        window[HEADER_SIZE + at] ^= 1

    return spoil
