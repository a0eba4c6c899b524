"""What is to be sent to one rank: ranges of blobs, which are read when their turn comes; none waits in memory."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fastpull.cluster.fabric import WINDOW_SIZE
from fastpull.errors import FastpullError

if TYPE_CHECKING:
    from fastpull.cluster.plan import Stretch

_SENDERS = 2  # windows to one rank at a time: while one is sent the next is read


@dataclass(frozen=True, slots=True)
class Letter:
    """A range that is to be sent.

    Attributes:
        stretch: that it is of.
        origin: the rank that has fetched or read it.
        start, stop: within the blob, in bytes.
    """

    stretch: Stretch
    origin: int
    start: int
    stop: int


class Outbox:
    """The letters to one rank.

    Args:
        send: sends one, and returns when it has left.
        on_error: told why nothing more can be sent.
    """

    def __init__(self, send: Callable[[Letter], Awaitable[None]], on_error: Callable[[FastpullError], None]) -> None:
        self._send = send
        self._on_error = on_error
        self._letters: deque[Letter] = deque()
        self._unsent: Counter[int] = Counter()
        self._sent = asyncio.Event()
        self._tasks = set[asyncio.Task[None]]()
        self._senders = 0  # that still look for letters; a task that has ended is among the tasks a little longer
        self._is_closed = False

    def put(self, letter: Letter) -> None:
        """Adds a range. Neighbours that still wait become one window, as far as it holds them."""
        if self._is_closed:
            return
        self._unsent[letter.stretch.number] += letter.stop - letter.start
        last = self._letters[-1] if self._letters else None
        if (
            last is not None
            and (last.stretch, last.origin, last.stop) == (letter.stretch, letter.origin, letter.start)
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

    async def sent(self, stretch: int) -> None:
        """Waits until all ranges of a stretch have left."""
        while self._unsent[stretch] and not self._is_closed:
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
                self._unsent[letter.stretch.number] -= letter.stop - letter.start
                self._sent.set()
                self._sent = asyncio.Event()
        except FastpullError as error:
            self._on_error(error)
        finally:
            self._senders -= 1
