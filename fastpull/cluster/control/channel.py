"""The ranks' talk: small values gathered and spread, signs of life, and who is missing.

Every wait ends: with what was waited for, or with an error that says whose part is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastpull.errors import FastpullError, RankFailed, RankLost

if TYPE_CHECKING:
    from fastpull.cluster.transport.fabric import Fabric, OnWindow

ROOT = 0
"""The rank that gathers; without it a job cannot go on."""

_BEATS = 10  # signs of life within the time after which a rank counts as lost
_MAX_BEAT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ClusterTerms:
    """How the ranks of a job deal with each other.

    Attributes:
        timeout_seconds: a rank that is silent for so long is lost.
        stall_seconds: a job in which nothing moves for so long is given up, or goes on without those it waits for.
        best_effort: go on without a rank that is lost or cannot do its part.
        fan_out: to how many others a rank sends what it gets.
    """

    timeout_seconds: float = 60.0
    stall_seconds: float = 300.0
    best_effort: bool = False
    fan_out: int = 2


class ControlChannel:
    """One rank's seat.

    Args:
        fabric: that carries the talk.
        host: this rank's, for messages.
        terms: of the job.

    Attributes:
        hosts: of the ranks, as far as they are known.
        lost: ranks that are not counted on any more; only the root knows all of them.
        failure: why the job cannot go on.
        on_lost: told of each rank that is lost, on the root.
        on_failure: told once, on every rank.
        progress: asked for this rank's state, which changes while it gets anywhere.
        on_progress: told the states of all ranks, on the root.
    """

    def __init__(self, fabric: Fabric, host: str, terms: ClusterTerms) -> None:
        self.fabric = fabric
        self.terms = terms
        self.hosts = {fabric.rank: host}
        self.lost = set[int]()
        self.failure: FastpullError | None = None
        self.on_lost: Callable[[int], None] = lambda _: None
        self.on_failure: Callable[[FastpullError], None] = lambda _: None
        self.progress: Callable[[], dict[str, Any]] = dict
        self.on_progress: Callable[[int, dict[str, Any]], None] = lambda *_: None
        self._handlers: dict[str, Callable[[int, Any], None]] = {}
        self._mail: dict[str, dict[int, Any]] = {}
        self._changed = asyncio.Event()
        self._heard = dict.fromkeys(range(fabric.size), time.monotonic())
        self._states: dict[int, dict[str, Any]] = {}
        self._moved = time.monotonic()
        self._expected: list[tuple[Callable[[], Iterable[int]], str]] = []
        self._watcher: asyncio.Task[None] | None = None

    @property
    def is_root(self) -> bool:
        """Whether this is the rank that gathers."""
        return self.fabric.rank == ROOT

    @property
    def rank(self) -> int:
        """This one."""
        return self.fabric.rank

    @property
    def present(self) -> list[int]:
        """The ranks that are not lost."""
        return [rank for rank in range(self.fabric.size) if rank not in self.lost]

    def start(self, on_window: OnWindow) -> None:
        """Begins to talk and to listen."""
        self.fabric.start(self._receive, on_window, self._break)
        self._heard = dict.fromkeys(self._heard, time.monotonic())
        self._watcher = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Ends the signs of life."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait({self._watcher})

    # --- talk

    def on(self, topic: str, handler: Callable[[int, Any], None]) -> None:
        """Has a handler called with (sender, value) for each message of a topic, in place of the mail."""
        self._handlers[topic] = handler
        for sender, value in self._mail.pop(topic, {}).items():
            handler(sender, value)

    def post(self, to: int, topic: str, value: Any = None) -> None:
        """Says something to one rank; to itself, too."""
        if to == self.rank:
            asyncio.get_running_loop().call_soon(self._take, to, topic, value)
        elif to not in self.lost:
            self.fabric.post(to, json.dumps({"topic": topic, "value": value}).encode())

    def post_all(self, ranks: Iterable[int], topic: str, value: Any = None) -> None:
        """Says something to several ranks."""
        for rank in ranks:
            self.post(rank, topic, value)

    async def gather(self, topic: str, value: Any, ranks: Iterable[int], doing: str) -> dict[int, Any]:
        """Brings a value of each rank to the root.

        Args:
            topic: not used before.
            value: this rank's.
            ranks: that are waited for; those that get lost meanwhile are not, where the job goes on without them.
            doing: what is waited for, in words.

        Returns:
            The values by rank; nothing on other ranks than the root.

        Raises:
            FastpullError: the job cannot go on.
        """
        self.post(ROOT, topic, value)
        if not self.is_root:
            return {}
        ranks = tuple(ranks)
        box = self._mail.setdefault(topic, {})
        with self.expecting(lambda: [rank for rank in ranks if rank not in box], doing):
            await self.until(lambda: all(rank in box or rank in self.lost for rank in ranks))
        return {rank: value for rank, value in self._mail.pop(topic).items() if rank in ranks}

    async def spread(self, topic: str, value: Any = None, ranks: Iterable[int] | None = None) -> Any:
        """Brings the root's value to all ranks that are there; returns it.

        Raises:
            FastpullError: the job cannot go on.
        """
        if self.is_root:
            self.post_all((rank for rank in (self.present if ranks is None else ranks) if rank != ROOT), topic, value)
            return value
        box = self._mail.setdefault(topic, {})
        await self.until(lambda: ROOT in box)
        return self._mail.pop(topic)[ROOT]

    def name(self, rank: int) -> str:
        """A rank in messages."""
        host = self.hosts.get(rank)
        return f"rank {rank} on {host}" if host else f"rank {rank}"

    # --- failures

    def fail(self, error: FastpullError) -> None:
        """Says on this rank that the job cannot go on; whoever waits gets the error."""
        if self.failure is None:
            self.failure = error
            self._pulse()
            self.on_failure(error)

    def give_up(self, reason: str) -> None:
        """On the root: tells all others that the job cannot go on."""
        self.post_all((rank for rank in self.present if rank != ROOT), "give up", reason)

    async def idle(self) -> None:
        """Waits, on a rank that has nothing to do, until all others have done their work.

        Raises:
            FastpullError: the job cannot go on.
        """
        await self.until(lambda: "closing" in self._mail)

    async def part(self, code: int) -> tuple[int, bool]:
        """Waits until all who are there have come to the end of the job.

        Args:
            code: that this rank would exit with.

        Returns:
            The root's, and whether nobody is lost.

        Raises:
            TimeoutError: some have not come.
        """
        self.failure = None  # it has been told; what is left is to leave together
        async with asyncio.timeout(self.terms.timeout_seconds):
            if self.is_root:
                self.post_all((rank for rank in self.present if rank != ROOT), "closing")
            await self.gather("bye", code, self.present, "the others ended")
            code, is_whole = await self.spread("end", (code, not self.lost))
        return code, is_whole

    def lose(self, ranks: Iterable[int], error: RankLost) -> None:
        """On the root: goes on without ranks, or gives the job up if it may not."""
        ranks = [rank for rank in ranks if rank not in self.lost]
        if not ranks:
            return
        self.lost.update(ranks)
        if not self.terms.best_effort or ROOT in ranks:
            self.give_up(error.message)
        for rank in ranks:
            self.fabric.post(rank, json.dumps({"topic": "give up", "value": str(error)}).encode())
        if not self.terms.best_effort or ROOT in ranks:
            self.fail(error)
            return
        for rank in ranks:
            self.on_lost(rank)
        self._pulse()

    def _break(self, error: Exception) -> None:
        assert isinstance(error, FastpullError)
        self.fail(error)

    # --- underneath

    def _receive(self, sender: int, message: bytes) -> None:
        if sender in self.lost:
            return  # it has been given up, whatever it says now
        self._heard[sender] = time.monotonic()
        content = json.loads(message)
        self._take(sender, content["topic"], content["value"])

    def _take(self, sender: int, topic: str, value: Any) -> None:
        if topic == "alive":
            self._note(sender, value)
        elif topic == "give up":
            self.fail(RankFailed(sender, self.hosts.get(sender, "?"), value))
        elif topic in self._handlers:
            self._handlers[topic](sender, value)
        else:
            self._mail.setdefault(topic, {})[sender] = value
        if topic != "alive":
            self._moved = time.monotonic()
            self._pulse()

    def _note(self, sender: int, state: dict[str, Any] | None) -> None:
        if state is not None and state != self._states.get(sender):
            self._states[sender] = state
            self._moved = time.monotonic()
            self.on_progress(sender, state)

    def _pulse(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Waits until something is so; looked at after each message that was handled here.

        Raises:
            FastpullError: the job cannot go on.
        """
        while True:
            if self.failure is not None:
                raise self.failure
            if is_so():
                return
            await self._changed.wait()

    @contextlib.contextmanager
    def expecting(self, missing: Callable[[], Iterable[int]], doing: str) -> Iterator[None]:
        """On the root: says whose part is missing if nothing moves; of several the last that misses somebody counts.

        Args:
            missing: the ranks that something is to come of.
            doing: what is waited for, in words.
        """
        expected = (missing, doing)
        self._expected.append(expected)
        try:
            yield
        finally:
            self._expected.remove(expected)

    async def _watch(self) -> None:
        """Gives signs of life, and looks for those of others."""
        timeout = self.terms.timeout_seconds
        beat = min(_MAX_BEAT_SECONDS, timeout / _BEATS, self.terms.stall_seconds / _BEATS)
        while self.failure is None:
            before = time.monotonic()
            await asyncio.sleep(beat)
            if time.monotonic() - before > timeout / 2:  # this process itself stood still: nobody else is to blame
                self._heard = dict.fromkeys(self._heard, time.monotonic())
                self._moved = time.monotonic()
            state = self.progress()
            if self.is_root:
                self._note(ROOT, state)
                self.post_all((rank for rank in self.present if rank != ROOT), "alive")
                self._look_for_missing()
            else:
                self.post(ROOT, "alive", state)
                if time.monotonic() - self._heard[ROOT] > timeout:
                    self.fail(RankLost((self.name(ROOT),), timeout, "it led the job"))

    def _look_for_missing(self) -> None:
        now, terms = time.monotonic(), self.terms
        doing = self._expected[-1][1] if self._expected else "the job went on"
        silent = [rank for rank in self.present if rank != ROOT and now - self._heard[rank] > terms.timeout_seconds]
        if silent:
            self.lose(silent, RankLost(self._names(silent), terms.timeout_seconds, doing))
        elif now - self._moved > terms.stall_seconds:
            for find_missing, doing in reversed(self._expected):
                missing = [rank for rank in find_missing() if rank not in self.lost]
                if missing:
                    self._moved = now
                    self.lose(missing, RankLost(self._names(missing), terms.stall_seconds, doing))
                    break

    def _names(self, ranks: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.name(rank) for rank in ranks)
