"""Queues of byte ranges to send. A range is read from its file only when a buffer is free, so none waits in memory."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from fastpull.cluster.transport.fabric import MAX_PAYLOAD
from fastpull.errors import FastpullError

if TYPE_CHECKING:
    from fastpull.cluster.transport.frame import FrameKind

_SENDERS = 2  # frames per receiver at a time: the next frame is read while one is sent


class Readable(Protocol):
    """A source of payloads."""

    @property
    def total(self) -> int | None:
        """The size in bytes, once it is known."""

    def read(self, buffer: memoryview, offset: int, part: int, /) -> bool:
        """Fill a buffer with available bytes. Blocks.

        Args:
            buffer: the buffer.
            offset: the position of its first byte.
            part: the part, as in `fastpull.cluster.transport.frame.Frame`.

        Returns:
            Whether the part is still current.

        Raises:
            FastpullError: the bytes cannot be read.
        """


@dataclass(frozen=True, slots=True)
class SendRequest:
    """A range of bytes to send.

    Attributes:
        source: the source of the bytes.
        kind, item, part, origin: as in `fastpull.cluster.transport.frame.Frame`.
        turn: the rotation of the tree that the range travels down, see `fastpull.cluster.blobs.plan.next_ranks`.
        start, stop: the range within the item, in bytes.
    """

    source: Readable
    kind: FrameKind
    item: int
    part: int
    turn: int
    origin: int
    start: int
    stop: int

    @property
    def key(self) -> tuple[int, int, int, int]:
        """The chunk that the range belongs to, for `SendQueue.flush`."""
        return self.kind, self.item, self.part, self.turn


class SendQueue:
    """The requests for one receiver.

    Args:
        send: sends one request; returns when its bytes have left.
        on_error: receives the error that prevents further sending.
    """

    def __init__(
        self, send: Callable[[SendRequest], Awaitable[None]], on_error: Callable[[FastpullError], None]
    ) -> None:
        self._send = send
        self._on_error = on_error
        self._requests: deque[SendRequest] = deque()
        self._unsent: Counter[tuple[int, int, int, int]] = Counter()
        self._sent = asyncio.Event()
        self._tasks = set[asyncio.Task[None]]()
        self._senders = 0  # tasks that will look for requests; a finished task stays in `_tasks` a little longer
        self._is_closed = False

    def put(self, request: SendRequest) -> None:
        """Add a range. It joins the last waiting range where both fit into one frame."""
        if self._is_closed:
            return
        self._unsent[request.key] += request.stop - request.start
        last = self._requests[-1] if self._requests else None
        if (
            last is not None
            and (last.key, last.origin, last.stop) == (request.key, request.origin, request.start)
            and request.stop - last.start <= MAX_PAYLOAD
        ):
            self._requests[-1] = replace(last, stop=request.stop)
        else:
            for start in range(request.start, request.stop, MAX_PAYLOAD):
                self._requests.append(replace(request, start=start, stop=min(start + MAX_PAYLOAD, request.stop)))
        while self._senders < min(_SENDERS, len(self._requests)):
            self._senders += 1
            task = asyncio.create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def flush(self, key: tuple[int, int, int, int]) -> None:
        """Wait until all ranges of a chunk have left."""
        while self._unsent[key] and not self._is_closed:
            await self._sent.wait()

    def close(self) -> None:
        """Drop all requests and cancel sending."""
        self._is_closed = True
        self._requests.clear()
        self._sent.set()
        for task in self._tasks:
            task.cancel()

    async def _run(self) -> None:
        try:
            while self._requests:
                request = self._requests.popleft()
                await self._send(request)
                self._unsent[request.key] -= request.stop - request.start
                self._sent.set()
                self._sent = asyncio.Event()
        except FastpullError as error:
            self._on_error(error)
        finally:
            self._senders -= 1
