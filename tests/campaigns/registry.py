"""A registry that answers a share of all requests wrongly, in every way that is known."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest import mock

import fastpull
from fastpull.errors import FastpullError
from fastpull.registry import download, transport
from fastpull.registry.ranges import MIB, Pace
from tests.campaigns.campaign import Campaign
from tests.campaigns.subject import FORMS, Subject
from tests.support.registry import Account
from tests.support.storm import StormyRegistry

_NOISE = (9 << 20, 5 << 20)
_SHARE = 0.05
_OVERHEAD = 1.05
_ON_THE_WIRE = 4 << 20
"""What a pull that fails, or a host that forgets what ranges are, may lose of the other connections' answers."""


class Registry(Campaign):
    """Asserts right bytes, little traffic, and no request within a pause that was asked for.

    Traffic is what right answers carry, counted as it is sent. A wrong answer wastes what it carries itself; a lie (a
    wrong total, wrong bytes of the right length, a 404 for what is there) wastes the blob that it spoils, and ends the
    pull, which is then begun again. Those are not held against the client; all else is.
    """

    name = "registry"
    trials = 1000

    async def prepare(self, folder: Path) -> None:
        self._patches: list[Any] = [
            mock.patch.object(download, "FIRST_RANGE", MIB),  # many requests for few bytes
            mock.patch.object(Pace, "max_range", MIB),
            mock.patch.object(transport, "STALL_SECONDS", 5.0),
        ]
        for patch in self._patches:
            patch.start()
        self._registry = StormyRegistry()
        await self._registry.__aenter__()
        self._registry.account = Account()
        self._subject = Subject(self._registry, 4, _NOISE)
        await self._subject.prepare(folder)
        self._right = self._allowed = 0.0

    async def close(self) -> None:
        await self._registry.__aexit__()
        for patch in self._patches:
            patch.stop()

    async def trial(self, choose: random.Random, folder: Path) -> None:
        registry, output, cache = self._registry, folder / choose.choice(sorted(FORMS.values())), folder / "cache"
        registry.choose, registry.share = choose, _SHARE
        registry.happened.clear()
        registry.too_early.clear()
        sent, wasted = self._subject.sent(), registry.wasted
        repeated = 0
        while True:
            lied = registry.lied
            try:
                await self._subject.pull(output, cache)
                break
            except FastpullError as error:
                assert registry.lied > lied, f"{error!r} after {dict(registry.happened)}"
                assert not output.exists(), f"published after {error!r}"
                repeated += 1
        registry.share, registry.burst = 0.0, 0
        await registry.quiet()
        self._subject.check(output)
        assert fastpull.Cache(cache).verify().is_sound
        assert not registry.too_early, f"{registry.too_early} after {dict(registry.happened)}"
        ignored = sum(count for name, count in registry.happened.items() if name.startswith("whole blob"))
        self._right += self._subject.sent() - sent
        self._allowed += _OVERHEAD * self._subject.size + registry.wasted - wasted + (repeated + ignored) * _ON_THE_WIRE
        self.report.counts.update(registry.happened)
        self.report.counts["(pulls begun again after a lie)"] += repeated

    def finish(self) -> None:
        assert self._right <= self._allowed, f"{self._right} bytes were sent, at most {self._allowed} are allowed"
