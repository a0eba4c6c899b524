"""Refusals: one blob is refused for good, milliseconds after its request, and the pull ends soon."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from aiohttp import web

import fastpull
from fastpull.config.settings import Settings
from fastpull.errors import AccessDenied, FastpullError, NotFound, UnexpectedAnswer
from tests.campaigns.campaign import Campaign
from tests.support.layers import file, stored
from tests.support.registry import Account, Fault, FaultyRegistry, redirect, status

_LAYERS = 5
_LONGEST_DELAYS_SECONDS = (0.03, 0.005)
_LIMIT_SECONDS = 20.0
_NAME, _TAG = "test/refused", "v1"

_REFUSALS: dict[str, tuple[Fault, type[FastpullError]]] = {
    "401 with a challenge of a single quote": (status(401, WWW_Authenticate="'"), AccessDenied),
    "404": (status(404), NotFound),
    "409": (status(409), UnexpectedAnswer),
    "a redirect to a bad port": (redirect(lambda _: "http://127.0.0.1:99999/blob"), UnexpectedAnswer),
}


class Refusal(Campaign):
    """Assert that a pull ends in time with the error of the refusal, and publishes nothing."""

    name = "refusal"
    trials = 2400
    at_once = 6

    async def prepare(self, folder: Path) -> None:
        self._layers = [
            stored([file(f"layer/{number}", bytes([number]) * (1000 << number))], bytes) for number in range(_LAYERS)
        ]

    async def trial(self, choose: random.Random, folder: Path) -> None:
        kind = sorted(_REFUSALS)[int(folder.name) % len(_REFUSALS)]
        fault, expected = _REFUSALS[kind]
        longest = choose.choice(_LONGEST_DELAYS_SECONDS)
        delays = [choose.uniform(0, longest) for _ in range(_LAYERS)]
        refused, has_tokens = choose.randrange(_LAYERS), choose.random() < 0.5
        async with FaultyRegistry() as registry:
            registry.account = Account() if has_tokens else None
            layers = self._layers
            registry.add_image(_NAME, _TAG, [one.blob for one in layers], [one.diff_id for one in layers])
            digests = [str(fastpull.Digest.of(one.blob)) for one in layers]

            async def delayed(faulty: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse | None:
                number = digests.index(digest)
                await asyncio.sleep(delays[number])
                return await fault(faulty, request, digest) if number == refused else None

            registry.faults.append(delayed)
            output = folder / "out"
            try:
                async with asyncio.timeout(_LIMIT_SECONDS):
                    await self._pull(f"{registry.address}/{_NAME}:{_TAG}", output, folder / "cache")
            except expected:
                pass
            except TimeoutError as error:
                raise AssertionError(f"{kind}: the pull has not ended after {_LIMIT_SECONDS:.0f} s") from error
            else:
                raise AssertionError(f"{kind}: the pull succeeded")
        assert not output.exists(), f"{kind}: published"
        self.report.counts[f"{kind}, {'with' if has_tokens else 'without'} tokens"] += 1

    @staticmethod
    async def _pull(source: str, output: Path, cache: Path) -> None:
        async with fastpull.Client(Settings(cache=str(cache), workers=2)) as client:
            await client.pull(source, str(output))
