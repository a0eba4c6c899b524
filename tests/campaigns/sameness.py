"""Reproducibility: the squashfs image has the same bytes for any initial cache and any number of workers."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from fastpull.errors import NotFound
from tests.campaigns.campaign import Campaign
from tests.campaigns.subject import FORMS, Subject
from tests.support.registry import FaultyRegistry, halves

_WAYS = list(itertools.product(("cold", "warm", "resumed"), (1, 2, 8)))
_NOISE = (3 << 20, 1 << 20)


class Sameness(Campaign):
    """Assert that every image equals that of the first pull byte for byte.

    A trial is a pull from an empty cache, a full one, or one with partial blobs, by 1, 2 or 8 workers.
    """

    name = "sameness"
    trials = 30 * len(_WAYS)

    async def prepare(self, folder: Path) -> None:
        self._registry = await FaultyRegistry().__aenter__()
        self._subject = Subject(self._registry, 4, _NOISE)
        await self._subject.prepare(folder)

    async def close(self) -> None:
        await self._registry.__aexit__()

    async def trial(self, choose: random.Random, folder: Path) -> None:
        begin, workers = _WAYS[int(folder.name) % len(_WAYS)]
        output, cache = folder / FORMS["squashfs"], folder / "cache"
        if begin == "warm":
            await self._subject.pull(folder / "first", cache)
        elif begin == "resumed":
            self._registry.faults = [halves()]
            with pytest.raises(NotFound):
                await self._subject.pull(output, cache)
            self._registry.faults = []
            assert self._subject.durable(cache), "nothing to resume"
        await self._subject.pull(output, cache, workers=workers)
        self._subject.check(output)
        self.report.counts[f"{begin}, {workers} workers"] += 1
