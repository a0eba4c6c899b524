"""What is to be sent: ranges of blobs and products, which are read when their turn comes; none waits in memory."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from fastpull.cluster.transport.fabric import WINDOW_SIZE
from fastpull.errors import FastpullError

if TYPE_CHECKING:
    from fastpull.cluster.transport.frame import FrameKind

_SENDERS = 2  # windows to one rank at a time: while one is sent the next is read


class Readable(Protocol):
    """What windows are read from."""

    @property
    def total(self) -> int | None:
        """Its size in bytes, once it is known."""

    def read(self, buffer: memoryview, offset: int, part: int, /) -> bool:
        """Fills a buffer with bytes that are there. Blocks.

        Args:
            buffer: for them.
            offset: of the first.
            part: as in the window.

        Returns:
            Whether they are still wanted.

        Raises:
            FastpullError: they cannot be read.
        """


@dataclass(frozen=True, slots=True)
class SendRequest:
    """A range that is to be sent.

    Attributes:
        source: where it is read.
        kind, item, part, origin: as in `fastpull.cluster.transport.frame.Frame`.
        turn: which tree it goes down, see `fastpull.cluster.blobs.plan.next_ranks`.
        start, stop: within the item, in bytes.
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
    def place(self) -> tuple[int, int, int, int]:
        """What it is a piece of."""
        return self.kind, self.item, self.part, self.turn


class SendQueue:
    """The letters to one rank.

    Args:
        send: sends one, and returns when it has left.
        on_error: told why nothing more can be sent.
    """

    def __init__(
        self, send: Callable[[SendRequest], Awaitable[None]], on_error: Callable[[FastpullError], None]
    ) -> None:
        self._send = send
        self._on_error = on_error
        self._letters: deque[SendRequest] = deque()
        self._unsent: Counter[tuple[int, int, int, int]] = Counter()
        self._sent = asyncio.Event()
        self._tasks = set[asyncio.Task[None]]()
        self._senders = 0  # that still look for letters; a task that has ended is among the tasks a little longer
        self._is_closed = False

    def put(self, letter: SendRequest) -> None:
        """Adds a range. Neighbours that still wait become one window, as far as it holds them."""
        if self._is_closed:
            return
        self._unsent[letter.place] += letter.stop - letter.start
        last = self._letters[-1] if self._letters else None
        if (
            last is not None
            and (last.place, last.origin, last.stop) == (letter.place, letter.origin, letter.start)
            and letter.stop - last.start <= WINDOW_SIZE
        ):
            self._letters[-1] = replace(last, stop=letter.stop)
        else:
            for start in range(letter.start, letter.stop, WINDOW_SIZE):
                self._letters.append(replace(letter, start=start, stop=min(start + WINDOW_SIZE, letter.stop)))
        while self._senders < min(_SENDERS, len(self._letters)):
            self._senders += 1
            task = asyncio.create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def sent(self, place: tuple[int, int, int, int]) -> None:
        """Waits until all ranges of a place have left."""
        while self._unsent[place] and not self._is_closed:
            await self._sent.wait()

    def close(self) -> None:
        """Sends nothing more."""
        self._is_closed = True
        self._letters.clear()
        self._sent.set()
        for task in self._tasks:
            task.cancel()

    async def _run(self) -> None:
        try:
            while self._letters:
                letter = self._letters.popleft()
                await self._send(letter)
                self._unsent[letter.place] -= letter.stop - letter.start
                self._sent.set()
                self._sent = asyncio.Event()
        except FastpullError as error:
            self._on_error(error)
        finally:
            self._senders -= 1
