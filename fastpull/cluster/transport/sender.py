"""Sending: the letters of this rank to all others, in as many buffers as there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING

from fastpull.cluster.transport.fabric import HEADER_SIZE, WINDOW_SIZE
from fastpull.cluster.transport.frame import Frame, FrameKind
from fastpull.cluster.transport.send_queue import SendQueue, SendRequest
from fastpull.concurrency.threads import in_thread

if TYPE_CHECKING:
    from fastpull.cluster.control.channel import ControlChannel
    from fastpull.errors import FastpullError

SEND_BUFFERS = 4


class Sender:
    """What one rank sends of one image.

    Args:
        number: of the image within the job.
        council: of the job.
        executor: for blocking calls on files.
        on_error: told why nothing more can be sent.

    Attributes:
        sent: bytes so far, by what they were of.
    """

    def __init__(
        self, number: int, council: ControlChannel, executor: Executor, on_error: Callable[[FastpullError], None]
    ) -> None:
        self._number = number
        self._council = council
        self._executor = executor
        self._on_error = on_error
        self._round = 0
        self._outboxes: dict[int, SendQueue] = {}
        self._is_closed = False
        self._buffers: asyncio.Queue[bytearray] = asyncio.Queue()
        for _ in range(SEND_BUFFERS):
            self._buffers.put_nowait(bytearray(HEADER_SIZE + WINDOW_SIZE))
        self.sent = dict.fromkeys(FrameKind, 0)

    def begin(self, round_: int) -> None:
        """Forgets what was not sent in the last round."""
        self._round = round_
        for outbox in self._outboxes.values():
            outbox.close()
        self._outboxes = {}

    def close(self) -> None:
        """Sends nothing more."""
        self._is_closed = True
        self.begin(self._round)

    def put(self, ranks: Sequence[int], letter: SendRequest) -> None:
        """Has a range sent."""
        if self._is_closed:
            return
        for to in ranks:
            outbox = self._outboxes.get(to)
            if outbox is None:
                outbox = self._outboxes[to] = SendQueue(partial(self._send, to), self._on_error)
            outbox.put(letter)

    async def has_left(self, place: tuple[int, int, int, int]) -> None:
        """Waits until nothing of a place, see `SendRequest`, waits to be sent."""
        for outbox in list(self._outboxes.values()):
            await outbox.sent(place)

    async def _send(self, to: int, letter: SendRequest) -> None:
        buffer = await self._buffers.get()
        is_ours = True  # while MPI does not have it
        try:
            packed = await in_thread(self._executor, self._pack, letter, buffer)
            if packed is None:
                return
            is_ours = False
            await self._council.fabric.send(to, packed)
            is_ours = True
            self.sent[letter.kind] += letter.stop - letter.start
        finally:
            # nobody may write into what is still to be sent to somebody who is not there
            self._buffers.put_nowait(buffer if is_ours else bytearray(HEADER_SIZE + WINDOW_SIZE))

    def _pack(self, letter: SendRequest, buffer: bytearray) -> memoryview | None:
        memory, size, source = memoryview(buffer), letter.stop - letter.start, letter.source
        total = source.total  # before it is read: what is read may be the end
        if not source.read(memory[HEADER_SIZE : HEADER_SIZE + size], letter.start, letter.part):
            return None
        place = letter.kind, letter.item, letter.part, letter.origin
        return Frame(self._number, self._round, *place, letter.start, size, total).seal(memory)
