"""Sending frames of one image to all other ranks, with a fixed number of buffers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING

from fastpull.cluster.transport.fabric import HEADER_SIZE, MAX_PAYLOAD
from fastpull.cluster.transport.frame import Frame, FrameKind
from fastpull.cluster.transport.send_queue import SendQueue, SendRequest
from fastpull.concurrency.threads import in_thread

if TYPE_CHECKING:
    from fastpull.cluster.transport.fabric import Fabric
    from fastpull.errors import FastpullError

SEND_BUFFERS = 4


class Sender:
    """The frames that one rank sends for one image.

    Args:
        image: the number of the image within the job.
        fabric: the network of the job.
        executor: runs blocking calls on files.
        on_error: receives the error that prevents further sending.

    Attributes:
        sent: the number of bytes sent, by kind of content.
    """

    def __init__(
        self, image: int, fabric: Fabric, executor: Executor, on_error: Callable[[FastpullError], None]
    ) -> None:
        self._image = image
        self._fabric = fabric
        self._executor = executor
        self._on_error = on_error
        self._round = 0
        self._queues: dict[int, SendQueue] = {}
        self._is_closed = False
        self._buffers: asyncio.Queue[bytearray] = asyncio.Queue()
        for _ in range(SEND_BUFFERS):
            self._buffers.put_nowait(bytearray(HEADER_SIZE + MAX_PAYLOAD))
        self.sent = dict.fromkeys(FrameKind, 0)

    def begin(self, round_: int) -> None:
        """Begin a round; drop the unsent requests of the last one."""
        self._round = round_
        for queue in self._queues.values():
            queue.close()
        self._queues = {}

    def close(self) -> None:
        """Drop all requests; later requests are ignored."""
        self._is_closed = True
        self.begin(self._round)

    def put(self, ranks: Sequence[int], request: SendRequest) -> None:
        """Queue a range for several ranks."""
        if self._is_closed:
            return
        for to in ranks:
            queue = self._queues.get(to)
            if queue is None:
                queue = self._queues[to] = SendQueue(partial(self._send, to), self._on_error)
            queue.put(request)

    async def flush(self, key: tuple[int, int, int, int]) -> None:
        """Wait until all ranges of a chunk, see `SendRequest.key`, have left."""
        for queue in list(self._queues.values()):
            await queue.flush(key)

    async def _send(self, to: int, request: SendRequest) -> None:
        buffer = await self._buffers.get()
        is_ours = True  # while MPI does not use it
        try:
            packed = await in_thread(self._executor, self._pack, request, buffer)
            if packed is None:
                return
            is_ours = False
            await self._fabric.send_frame(to, packed)
            is_ours = True
            self.sent[request.kind] += request.stop - request.start
        finally:
            # MPI may still read the buffer of a cancelled send, so a new buffer takes its place
            self._buffers.put_nowait(buffer if is_ours else bytearray(HEADER_SIZE + MAX_PAYLOAD))

    def _pack(self, request: SendRequest, buffer: bytearray) -> memoryview | None:
        memory, size, source = memoryview(buffer), request.stop - request.start, request.source
        total = source.total  # before the read, which may read the end
        if not source.read(memory[HEADER_SIZE : HEADER_SIZE + size], request.start, request.part):
            return None
        place = request.kind, request.item, request.part, request.origin
        return Frame(self._image, self._round, *place, request.start, size, total).pack(memory)
