"""A registry that gives wrong responses to a share of the requests, or to all, in every known way."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any
from unittest import mock

import fastpull
from fastpull.config.access import Access
from fastpull.config.settings import Settings
from fastpull.errors import FastpullError
from fastpull.registry.download import download
from fastpull.registry.download.adaptive import AdaptiveConcurrency
from fastpull.registry.download.ranges import MIB
from tests.campaigns.campaign import Campaign
from tests.campaigns.subject import FORMS, Subject
from tests.support.registry import Account, FaultyRegistry
from tests.support.storm import MISBEHAVIORS, StormyRegistry

_NOISE = (5 << 20, 3 << 20)
_SHARE = 0.05
_OVERHEAD = 1.05
_PATIENCE_SECONDS = 30.0
_ON_THE_WIRE = 4 << 20
"""Bytes in flight on other connections, lost when a pull fails or a host ignores ranges."""


class Registry(Campaign):
    """Assert right bytes, bounded traffic, and no request during a requested pause.

    Traffic counts the bytes of correct responses as they are sent. These bytes are not counted against the client:
    those of a wrong response itself, the blob damaged by wrong bytes of the right length, and a pull ended by a lie (a
    wrong total, or a 404 for existing content), which the trial repeats.
    """

    name = "registry"
    trials = 1000
    at_once = 12  # a trial mostly waits

    async def prepare(self, folder: Path) -> None:
        self._patches: list[Any] = [
            mock.patch.object(download, "FIRST_RANGE", MIB),  # small ranges give many requests
            mock.patch.object(AdaptiveConcurrency, "max_range", MIB),
        ]
        for patch in self._patches:
            patch.start()
        async with FaultyRegistry() as calm:
            self._subject = Subject(calm, 4, _NOISE)
            await self._subject.prepare(folder)
        self._right = self._allowed = self._size = 0.0
        self._requests = self._wrong = 0

    async def close(self) -> None:
        for patch in self._patches:
            patch.stop()

    async def trial(self, choose: random.Random, folder: Path) -> None:
        async with StormyRegistry() as registry:
            registry.account = Account()
            registry.choose, registry.share = choose, _SHARE
            await self._endure(registry, folder / choose.choice(sorted(FORMS.values())), folder / "cache")

    async def _endure(self, registry: StormyRegistry, output: Path, cache: Path) -> None:
        subject = self._subject.served_by(registry)
        repeated = 0
        settings = Settings(cache=str(cache), workers=2, access=Access(timeout=5))
        async with fastpull.Client(settings) as client:  # a single client, which knows all pauses
            while True:
                lied = registry.lied
                try:
                    await subject.pull_with(client, output)
                    break
                except FastpullError as error:
                    may_fail = registry.lied > lied or max(registry.spoiled.values(), default=0) > 1
                    assert may_fail, f"{error!r} after {dict(registry.happened)}"
                    assert not output.exists(), f"published after {error!r}"
                    repeated += 1
        await registry.wait_until_idle()
        await asyncio.to_thread(subject.check, output)
        found = await asyncio.to_thread(fastpull.cache.CacheManager(cache).verify)
        assert found.is_sound, f"the cache is not clean: {found}"
        assert not registry.too_early, f"{registry.too_early} after {dict(registry.happened)}"
        ignored = sum(count for name, count in registry.happened.items() if name.startswith("whole blob"))
        self._right += subject.sent()
        self._allowed += _OVERHEAD * subject.size + registry.wasted + (repeated + ignored) * _ON_THE_WIRE
        self._size += subject.size
        self._requests += len(registry.requests)
        self._wrong += registry.happened.total()
        self.report.counts.update(registry.happened)
        self.report.counts["(pulls repeated after a lie)"] += repeated

    def finish(self) -> None:
        self.report.notes.append(
            f"{self._requests} requests, {self._wrong} wrong responses; {self._right:.0f} bytes sent"
            f" for images of {self._size:.0f}, a ratio of {self._right / self._size:.3f}"
        )
        assert self._right <= self._allowed, f"got {self._right:.0f} bytes sent, expected at most {self._allowed:.0f}"


class Permanent(Campaign):
    """Assert that a pull with one permanent fault ends soon, with the matching error.

    A trial is one fault; a pull succeeds despite some of them.
    """

    name = "permanent"
    trials = len(MISBEHAVIORS)
    at_once = 12

    async def prepare(self, folder: Path) -> None:
        async with FaultyRegistry() as calm:
            self._subject = Subject(calm, 1)
            await self._subject.prepare(folder)

    async def trial(self, choose: random.Random, folder: Path) -> None:
        name = sorted(MISBEHAVIORS)[int(folder.name) % len(MISBEHAVIORS)]
        expected = MISBEHAVIORS[name].error
        async with StormyRegistry() as registry:
            registry.account = Account()
            registry.share, registry.only = 1.0, name
            subject, output, cache = self._subject.served_by(registry), folder / "out", folder / "cache"
            ended: FastpullError | None = None
            began = time.monotonic()
            try:
                await subject.pull(output, cache, access=Access(timeout=1))
                subject.check(output)
            except FastpullError as error:
                ended = error
            seconds = time.monotonic() - began
            assert type(ended) is (expected or type(None)), f"{name}: {ended!r}"
            assert ended is None or not output.exists(), f"{name}: published"
            assert seconds <= _PATIENCE_SECONDS, f"{name}: {seconds:.0f} s"
            assert not registry.too_early, f"{name}: {registry.too_early}"
            assert fastpull.cache.CacheManager(cache).verify().is_sound
        self.report.counts[f"exit code {ended.exit_code if ended else 0}: {name}"] += 1
