"""Company: many processes, one image, one cache, a collection that never rests, and deaths among them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import fastpull
from fastpull.cache.store import Store
from tests.campaigns.campaign import Campaign
from tests.campaigns.subject import FORMS, Subject
from tests.support.processes import Ended, end, start
from tests.support.registry import FaultyRegistry, slow

_NOISE = (10 << 20, 2 << 20)
_RATE = 20 << 20
_OVERHEAD = 1.02
_LOST_OF_A_DEATH = 12 << 20
"""What may have been on the wire: a batch and a receive buffer of each connection, of three blobs."""


class Concurrency(Campaign):
    """Asserts that all survivors are right, and that each blob is fetched once where nobody died.

    A trial is calm (nobody dies, the collection takes leftovers only), or has deaths (among them a leader's, whose
    followers take over), or a collection that takes every blob as soon as it is there.

    Args:
        processes: at once.
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

    async def close(self) -> None:
        await self._registry.__aexit__()

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
        await self._registry.quiet()
        sent = self._subject.sent() - before
        if kind != "greedy collection":
            most = _OVERHEAD * self._subject.size + deaths * _LOST_OF_A_DEATH
            assert sent <= most, f"{sent} bytes of {self._subject.size} were sent, with {deaths} deaths"
        self.report.counts[kind] += 1
        self.report.counts[f"{kind}: deaths"] += deaths
        await self._subject.recover(folder / "out", cache)

    async def _pulls(self, choose: random.Random, folder: Path, deaths: int) -> int:
        """Runs all processes to their ends, and checks those that were not killed; returns how many were."""
        cache = str(folder / "cache")
        outputs, processes = [], []
        for number in range(self._processes):
            (folder / str(number)).mkdir()
            form = choose.choice(sorted(FORMS))
            keep = choose.choice([(), ("--keep-image",)]) if form == "squashfs" else ()
            outputs.append(folder / str(number) / FORMS[form])
            processes.append(await start("pull", self._subject.reference, "-o", outputs[-1], *keep, cache=cache))
        endings = [asyncio.create_task(end(process, 200)) for process in processes]
        doomed = choose.sample(range(self._processes), deaths)
        killed = 0
        for number in doomed:
            await self._more_is_sent(choose.randint(0, 1 << 20), endings)
            if not endings[number].done():
                os.kill(processes[number].pid, signal.SIGKILL)
                killed += 1
        for number, (ending, output) in enumerate(zip(endings, outputs, strict=True)):
            ended = await ending
            if number not in doomed:
                assert ended.code == 0, f"process {number}: exit code {ended.code}, {ended.err}"
            if output.exists():
                self._subject.check(output)
        return killed

    async def _more_is_sent(self, size: int, endings: list[asyncio.Task[Ended]]) -> None:
        """Waits until the registry has sent so much more, or has nothing to send any more."""
        goal = self._subject.sent() + size
        while self._subject.sent() < goal and not all(ending.done() for ending in endings):  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def _collect(self, cache: Path, *, greedy: bool) -> None:
        while True:
            await asyncio.to_thread(fastpull.Cache(cache).collect, max_size=0 if greedy else None)
            await asyncio.sleep(0.02)
