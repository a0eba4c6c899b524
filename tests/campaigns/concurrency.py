"""Concurrency: many processes, one image, one cache, continuous garbage collection, deaths and hand-over."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import time
from pathlib import Path

import fastpull
from fastpull.cache.store import Store
from tests.campaigns.campaign import Campaign
from tests.campaigns.subject import FORMS, Subject
from tests.support.processes import ProcessResult, end, kill_unless_ended, start
from tests.support.registry import FaultyRegistry, slow

_NOISE = (10 << 20, 2 << 20)
_RATE = 20 << 20
_OVERHEAD = 1.02
_LOST_OF_A_DEATH = 12 << 20
"""Bytes in flight at a death: a batch and a receive buffer of each connection, of three blobs."""

_LED = 12 << 20
_LED_RATE = 1 << 20
"""Slow enough that the leader still downloads when the last follower begins to wait."""
_FOLLOWERS = 3


class Concurrency(Campaign):
    """Assert that all survivors are correct, and that each blob is fetched once if no process died.

    A trial is calm (no deaths; the collection removes only orphans), or has deaths (also of a leader, whose followers
    take over), or a greedy collection that removes every blob at once.

    Args:
        processes: number of concurrent processes.
    """

    name = "concurrency"
    trials = 12

    def __init__(self, processes: int = 64) -> None:
        self._processes = processes

    async def prepare(self, folder: Path) -> None:
        self._registry = await FaultyRegistry().__aenter__()
        self._subject = Subject(self._registry, 4, _NOISE)
        await self._subject.prepare(folder)
        self._registry.faults = [slow(_RATE)]
        self._ratios: dict[str, list[float]] = {}

    async def close(self) -> None:
        await self._registry.__aexit__()

    def finish(self) -> None:
        for kind, ratios in self._ratios.items():
            mean = statistics.mean(ratios)
            self.report.notes.append(
                f"{kind}: each byte was sent {mean:.3f} times on average, at most {max(ratios):.3f} times"
            )

    async def trial(self, choose: random.Random, folder: Path) -> None:
        kind = ("calm", "deaths", "greedy collection")[int(folder.name) % 3]
        cache, before = folder / "cache", self._subject.sent()
        Store(str(cache))
        collecting = asyncio.create_task(self._collect(cache, greedy=kind == "greedy collection"))
        try:
            deaths = await self._pulls(
                choose, folder, choose.randint(1, self._processes // 3) if kind == "deaths" else 0
            )
        finally:
            collecting.cancel()
            await asyncio.wait({collecting})
        await self._registry.wait_until_idle()
        sent = self._subject.sent() - before
        self._ratios.setdefault(kind, []).append(sent / self._subject.size)
        if kind != "greedy collection":
            most = _OVERHEAD * self._subject.size + deaths * _LOST_OF_A_DEATH
            size = self._subject.size
            assert sent <= most, f"got {sent} bytes sent, expected at most {most:.0f} of {size}, with {deaths} deaths"
        self.report.counts[kind] += 1
        self.report.counts[f"{kind}: deaths"] += deaths
        await self._subject.recover(folder / "out", cache)

    async def _pulls(self, choose: random.Random, folder: Path, deaths: int) -> int:
        """Run all processes to their ends, check the survivors, and return the number of deaths."""
        cache = str(folder / "cache")
        outputs, processes = [], []
        for number in range(self._processes):
            (folder / str(number)).mkdir()
            form = choose.choice(sorted(FORMS))
            keep = choose.choice([(), ("--keep-images",)]) if form == "squashfs" else ()
            outputs.append(folder / str(number) / FORMS[form])
            processes.append(await start("pull", self._subject.reference, "-o", outputs[-1], *keep, cache=cache))
        endings = [asyncio.create_task(end(process, 200)) for process in processes]
        victims = choose.sample(range(self._processes), deaths)
        killed = 0
        for number in victims:
            await self._later(choose, endings)
            killed += kill_unless_ended(processes[number], endings[number])
        for number, (ending, output) in enumerate(zip(endings, outputs, strict=True)):
            ended = await ending
            if number not in victims:
                assert ended.code == 0, f"process {number}: exit code {ended.code}, {ended.err}"
            if output.exists():
                self._subject.check(output)
        return killed

    async def _later(self, choose: random.Random, endings: list[asyncio.Task[ProcessResult]]) -> None:
        """Wait until the registry has sent more bytes, or for a short time if it has nothing to send."""
        goal, latest = self._subject.sent() + choose.randint(0, 1 << 20), time.monotonic() + choose.uniform(0.05, 1.0)
        while self._subject.sent() < goal and time.monotonic() < latest and not all(one.done() for one in endings):  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def _collect(self, cache: Path, *, greedy: bool) -> None:
        while True:
            await asyncio.to_thread(fastpull.cache.CacheManager(cache).collect, max_size=0 if greedy else None)
            await asyncio.sleep(0.02)


class Handover(Campaign):
    """Assert that a waiting process continues a blob within a second after the death of its leader.

    The time is from the death to the next request for the blob. It includes taking the lock and reading the partial
    blob.

    Args:
        patience_seconds: maximum time of a hand-over.
    """

    name = "handover"
    trials = 50

    def __init__(self, patience_seconds: float = 1.0) -> None:
        self._patience_seconds = patience_seconds

    async def prepare(self, folder: Path) -> None:
        self._registry = await FaultyRegistry().__aenter__()
        self._subject = Subject(self._registry, 1, (_LED,))
        await self._subject.prepare(folder)
        self._seconds: list[float] = []

    async def close(self) -> None:
        await self._registry.__aexit__()

    async def trial(self, choose: random.Random, folder: Path) -> None:
        registry, cache = self._registry, str(folder / "cache")
        registry.faults = [slow(_LED_RATE)]
        before = self._subject.sent()
        leader = await start("pull", self._subject.reference, "-o", folder / "leader", cache=cache)
        while self._subject.sent() - before < _LED // 4:  # noqa: ASYNC110  # the registry has no event
            await asyncio.sleep(0.005)
        outputs = [folder / str(number) for number in range(_FOLLOWERS)]
        followers = [await start("pull", self._subject.reference, "-o", output, cache=cache) for output in outputs]
        for follower in followers:
            assert follower.stderr is not None
            await follower.stderr.readuntil(b"waiting for")
        await asyncio.sleep(choose.uniform(0, 0.2))
        registry.faults.clear()
        asked = len(registry.blob_requests())
        os.kill(leader.pid, signal.SIGKILL)
        died = time.monotonic()
        await end(leader)
        for follower, output in zip(followers, outputs, strict=True):
            ended = await end(follower)
            assert ended.code == 0, ended.err
            self._subject.check(output)
        later = [one.time for one in registry.blob_requests()[asked:] if one.time > died]
        assert later, "no process took over"
        self._seconds.append(later[0] - died)
        assert self._seconds[-1] <= self._patience_seconds, f"the hand-over took {self._seconds[-1]:.2f} s"
        self.report.counts["hand-overs"] += 1

    def finish(self) -> None:
        if self._seconds:
            median, most = statistics.median(self._seconds), max(self._seconds)
            self.report.notes.append(
                f"time from the death to the next request: median {median:.3f} s, at most {most:.3f} s"
            )
