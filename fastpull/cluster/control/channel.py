"""The control channel: typed messages between ranks, collected and broadcast, with detection of lost ranks.

Every wait ends: with the result, or with an error that names the missing ranks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastpull.cluster.control.failure_detector import FailureDetector
from fastpull.cluster.messages import (
    Alive,
    JobAborted,
    JobDone,
    JobEnd,
    M,
    Message,
    RankBroken,
    ReadyToLeave,
    decode,
    encode,
)
from fastpull.errors import FastpullError, MalformedMessage, RankFailed, RankLost

if TYPE_CHECKING:
    from fastpull.cluster.messages import TaskProgress
    from fastpull.cluster.transport.fabric import Fabric, OnFrame

ROOT = 0
"""The rank that coordinates; a job cannot go on without it."""

_log = logging.getLogger(__name__)

_Key = tuple[type[Message], int | None]
"""A type of messages, and the image that they concern; None for messages of the job."""


@dataclass(frozen=True, slots=True)
class ClusterTerms:
    """The rules of a job, the same on all ranks.

    Attributes:
        timeout_seconds: a rank that is silent for longer is lost.
        stall_seconds: without any progress for longer, the job ends, or drops the ranks that it waits for.
        best_effort: go on without ranks that are lost or cannot do their part.
        fan_out: the number of ranks to which a rank forwards what it receives.
    """

    timeout_seconds: float = 60.0
    stall_seconds: float = 300.0
    best_effort: bool = False
    fan_out: int = 2


class ControlChannel:
    """The messages of one rank.

    Args:
        fabric: the network.
        host: this rank's host name.
        terms: the rules of the job.

    Attributes:
        hosts: the known host names, by rank.
        lost: the lost ranks; complete on rank 0 only.
        failure: the reason why the job cannot go on; None while it can.
        detector: the failure detector of this rank.
        on_lost: called on rank 0 with each lost rank.
        on_failure: called once on every rank, with the failure.
        progress: returns this rank's progress; None between images.
        on_progress: called on rank 0 with the progress of each rank.
    """

    def __init__(self, fabric: Fabric, host: str, terms: ClusterTerms) -> None:
        self.fabric = fabric
        self.terms = terms
        self.hosts = {fabric.rank: host}
        self.lost = set[int]()
        self.failure: FastpullError | None = None
        self.detector = FailureDetector(fabric.size, terms.timeout_seconds, terms.stall_seconds)
        self.on_lost: Callable[[int], None] = lambda _: None
        self.on_failure: Callable[[FastpullError], None] = lambda _: None
        self.progress: Callable[[], TaskProgress | None] = lambda: None
        self.on_progress: Callable[[int, TaskProgress], None] = lambda *_: None
        self._handlers: dict[_Key, Callable[[int, Any], None]] = {}
        self._mail: dict[_Key, dict[int, Any]] = {}
        self._changed = asyncio.Event()
        self._heartbeat: asyncio.Task[None] | None = None

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0."""
        return self.fabric.rank == ROOT

    @property
    def rank(self) -> int:
        """This rank."""
        return self.fabric.rank

    @property
    def present(self) -> list[int]:
        """The ranks that are not lost."""
        return [rank for rank in range(self.fabric.size) if rank not in self.lost]

    def start(self, on_frame: OnFrame) -> None:
        """Begin to send and to receive."""
        self.fabric.start(self._receive, on_frame, self._on_fabric_error)
        self.detector.reset()
        self._heartbeat = asyncio.create_task(self._send_heartbeats())

    async def stop(self) -> None:
        """Stop the heartbeats."""
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.wait({self._heartbeat})

    # --- messages

    def on(self, kind: type[M], handler: Callable[[int, M], None], image: int | None = None) -> None:
        """Register a handler for a type of messages; it receives those that have already arrived at once.

        Args:
            kind: the type of messages.
            handler: receives (sender, message); may raise `MalformedMessage`, which ends the job.
            image: the number of the image whose messages are handled; None for those of all images, or of the job.
        """
        self._handlers[kind, image] = handler
        for sender, message in self._mail.pop((kind, image), {}).items():
            handler(sender, message)

    def send(self, to: int, message: Message) -> None:
        """Send a message to a rank, which may be this one."""
        if not isinstance(message, Alive):
            _log.debug("send %s to %s", type(message).__name__, self.name(to))
        if to == self.rank:
            asyncio.get_running_loop().call_soon(self._dispatch, to, message)
        elif to not in self.lost:
            self.fabric.send_message(to, encode(message))

    def broadcast(self, message: Message, ranks: Iterable[int] | None = None) -> None:
        """Send a message to several ranks; by default to all other ranks that are not lost."""
        if ranks is None:
            ranks = [rank for rank in self.present if rank != self.rank]
        for rank in ranks:
            self.send(rank, message)

    async def gather(self, message: M, ranks: Iterable[int], doing: str) -> dict[int, M]:
        """Bring a message of each rank to rank 0.

        Args:
            message: this rank's message, of a type that was not gathered before.
            ranks: the ranks to wait for; lost ranks are left out, where the job goes on without them.
            doing: the work that waits, in words.

        Returns:
            The messages by rank on rank 0; an empty mapping on other ranks.

        Raises:
            FastpullError: the job cannot go on.
        """
        self.send(ROOT, message)
        if not self.is_root:
            return {}
        key, ranks = (type(message), None), tuple(ranks)
        box = self._mail.setdefault(key, {})
        with self.expecting(lambda: [rank for rank in ranks if rank not in box], doing):
            await self.until(lambda: all(rank in box or rank in self.lost for rank in ranks))
        return {rank: value for rank, value in self._mail.pop(key).items() if rank in ranks}

    async def receive(self, kind: type[M], image: int | None = None) -> M:
        """Wait for a message of rank 0, which no handler takes.

        Args:
            kind: the type of the message.
            image: the number of the image that it concerns.

        Raises:
            FastpullError: the job cannot go on.
        """
        box = self._mail.setdefault((kind, image), {})
        await self.until(lambda: ROOT in box)
        message: M = self._mail.pop((kind, image))[ROOT]
        return message

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is evaluated after each message to this rank.

        Raises:
            FastpullError: the job cannot go on.
        """
        while True:
            if self.failure is not None:
                raise self.failure
            if condition():
                return
            await self._changed.wait()

    def name(self, rank: int) -> str:
        """Return the name of a rank in error messages."""
        host = self.hosts.get(rank)
        return f"rank {rank} on {host}" if host else f"rank {rank}"

    # --- failures

    def expecting(self, missing: Callable[[], Iterable[int]], doing: str) -> AbstractContextManager[None]:
        """Name the ranks that rank 0 waits for; see `FailureDetector.expecting`."""
        return self.detector.expecting(missing, doing)

    def fail(self, error: FastpullError) -> None:
        """End the job on this rank; every wait raises the error."""
        if self.failure is None:
            self.failure = error
            self._wake_waits()
            self.on_failure(error)

    def abort(self, reason: str) -> None:
        """End the job on all other ranks. For rank 0."""
        self.broadcast(JobAborted(reason))

    def lose(self, ranks: Iterable[int], error: RankLost) -> None:
        """Drop ranks, or end the job if it may not go on without them. For rank 0."""
        ranks = [rank for rank in ranks if rank not in self.lost]
        if not ranks:
            return
        self.lost.update(ranks)
        _log.debug("lost %s: %s", ", ".join(map(self.name, ranks)), error.message)
        must_end = not self.terms.best_effort or ROOT in ranks
        if must_end:
            self.abort(error.message)
        for rank in ranks:  # `send` skips lost ranks, which may still be alive
            self.fabric.send_message(rank, encode(JobAborted(str(error))))
        if must_end:
            self.fail(error)
            return
        for rank in ranks:
            self.on_lost(rank)
        self._wake_waits()

    # --- the end

    async def wait_until_done(self) -> None:
        """Wait, on a rank that does not work, until all members have done their work.

        Raises:
            FastpullError: the job cannot go on.
        """
        await self.until(lambda: (JobDone, None) in self._mail)

    async def shut_down(self, exit_code: int) -> tuple[int, bool]:
        """Wait until all ranks that are not lost have come to the end of the job.

        Args:
            exit_code: the exit code that this rank would end with.

        Returns:
            Rank 0's exit code, and whether no rank is lost.

        Raises:
            TimeoutError: a rank has not come to the end in time.
        """
        self.failure = None  # reported already; from here on the ranks only leave together
        async with asyncio.timeout(self.terms.timeout_seconds):
            if self.is_root:
                self.broadcast(JobDone())
            await self.gather(ReadyToLeave(exit_code), self.present, "the others ended")
            if self.is_root:
                end = JobEnd(exit_code, not self.lost)
                self.broadcast(end)
            else:
                end = await self.receive(JobEnd)
        return end.exit_code, end.is_whole

    # --- receiving

    def _receive(self, sender: int, content: bytes) -> None:
        if sender in self.lost:
            return  # the job goes on without it, even if it is alive
        self.detector.heard_from(sender)
        try:
            message = decode(content, self.name(sender))
        except MalformedMessage as error:
            self._refuse(error)
        else:
            self._dispatch(sender, message)

    def _refuse(self, error: MalformedMessage) -> None:
        """End the job on all ranks, since a rank may wait for the effect of the message."""
        if self.is_root:
            self.abort(error.message)
        else:
            self.send(ROOT, RankBroken(error.message))
        self.fail(error)

    def _dispatch(self, sender: int, message: Message) -> None:
        if isinstance(message, Alive):
            self._note_progress(sender, message.progress)
            return
        kind, image = type(message), getattr(message, "image", None)
        handler = self._handlers.get((kind, image)) or self._handlers.get((kind, None))
        if isinstance(message, JobAborted):
            self.fail(RankFailed(sender, self.hosts.get(sender, "?"), message.reason))
        elif handler is not None:
            try:
                handler(sender, message)
            except MalformedMessage as error:
                self._refuse(error)
        else:
            self._mail.setdefault((kind, image), {})[sender] = message
        self.detector.advance()
        self._wake_waits()

    def _note_progress(self, sender: int, progress: TaskProgress | None) -> None:
        if self.detector.report_progress(sender, progress) and progress is not None:
            self.on_progress(sender, progress)

    def _wake_waits(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _on_fabric_error(self, error: Exception) -> None:
        assert isinstance(error, FastpullError)
        self.fail(error)

    # --- heartbeats

    async def _send_heartbeats(self) -> None:
        """Send heartbeats, and look for lost ranks."""
        timeout, interval = self.terms.timeout_seconds, self.detector.heartbeat_seconds
        while self.failure is None:
            before = time.monotonic()
            await asyncio.sleep(interval)
            if time.monotonic() - before > timeout / 2:  # this process was stopped, so no other rank is at fault
                self.detector.reset()
            progress = self.progress()
            if self.is_root:
                self._note_progress(ROOT, progress)
                self.broadcast(Alive())
                self._drop_suspects()
            else:
                self.send(ROOT, Alive(progress))
                if self.detector.is_silent(ROOT):
                    self.fail(RankLost((self.name(ROOT),), timeout, "it led the job"))

    def _drop_suspects(self) -> None:
        self.detector.heard_from(ROOT)
        suspects = self.detector.find_suspects(self.present)
        if suspects is not None:
            names = tuple(self.name(rank) for rank in suspects.ranks)
            self.lose(suspects.ranks, RankLost(names, suspects.seconds, suspects.doing))
