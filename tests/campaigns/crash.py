"""Crashes: SIGKILL at a random time or a random system call."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import fastpull
from tests.campaigns.calls import Call, calls_on, pick, recording
from tests.campaigns.campaign import Campaign
from tests.campaigns.subject import FORMS, Subject
from tests.support.processes import end, kill_unless_ended, run, start
from tests.support.registry import FaultyRegistry, slow

_CALLS = (
    "chmod", "copy_file_range", "fallocate", "fchmod", "fdatasync", "flock", "fsync", "ftruncate", "link", "linkat",
    "mkdir", "mkdirat", "mknodat", "openat", "pwrite64", "pwritev", "pwritev2", "rename", "renameat", "renameat2",
    "rmdir", "symlinkat", "sync_file_range", "syncfs", "unlink", "unlinkat", "utimensat", "write",
)  # fmt: skip
_NOISE = (5 << 20, 3 << 20)  # several journal records each
_REUSED = 0.95
_RATE = 30 << 20  # bytes per second and connection, so that some deaths interrupt a blob
_MAX_DEATHS = 3


class Crash(Campaign):
    """Assert that the output is absent or complete, the cache clean, and durable bytes are not fetched again.

    A trial has up to three consecutive deaths; each pull resumes the state left by the previous one.
    """

    name = "crash"
    trials = 2000

    async def prepare(self, folder: Path) -> None:
        self._registry = await FaultyRegistry().__aenter__()
        self._subject = Subject(self._registry, 4, _NOISE)
        await self._subject.prepare(folder)
        self._registry.faults = [slow(_RATE)]
        self._calls: dict[str, dict[str, list[Call]]] = {}
        self._seconds: dict[str, float] = {}
        for form, name in FORMS.items():
            where = folder / form
            where.mkdir()
            began = time.monotonic()
            ended = await run("pull", self._subject.reference, "-o", where / name, cache=str(where / "calm"))
            assert ended.code == 0, ended.err
            self._seconds[form] = time.monotonic() - began
            ended = await run("pull", self._subject.reference, "-o", where / name, "--force", "--sync",
                              cache=str(where / "cache"), under=recording(where / "log", _CALLS))  # fmt: skip
            assert ended.code == 0, ended.err
            self._calls[form] = calls_on(where / "log", where)

    async def close(self) -> None:
        await self._registry.__aexit__()

    async def trial(self, choose: random.Random, folder: Path) -> None:
        form = choose.choice(sorted(FORMS))
        output, cache = folder / FORMS[form], folder / "cache"
        how = ""
        for _ in range(choose.randint(1, _MAX_DEATHS)):
            durable, before = self._subject.durable(cache), self._subject.sent()
            how = await self._die(choose, folder, form)
            await self._registry.wait_until_idle()
            if output.exists():
                self._subject.check(output)
            sent = self._subject.sent() - before
            most = self._subject.size - _REUSED * durable
            assert sent <= most, (
                f"got {sent} bytes sent, expected at most {most:.0f}, with {durable} durable bytes, after {how}"
            )
            self.report.counts[f"{how}: {'published' if output.exists() else 'nothing published'}"] += 1
        durable = self._subject.durable(cache)
        fetched = await self._subject.recover(output, cache)
        most = self._subject.size - _REUSED * durable
        assert fetched <= most, (
            f"got {fetched} bytes fetched, expected at most {most:.0f}, with {durable} durable bytes, after {how}"
        )
        expected = {"cache", "log", output.name}
        assert set(os.listdir(folder)) <= expected, (
            f"unexpected files beside the output: {set(os.listdir(folder)) - expected}"
        )
        # a death between publishing and unlocking leaves a lock file without a holder
        fastpull.cache.CacheManager(cache).collect()
        # an empty draft has no known owner, because its owner died before writing its name
        drafts = {
            path for path in (cache / "v1/locks").iterdir() if path.name.startswith(".") and not path.stat().st_size
        }
        left = [str(path) for path in (cache / "v1/locks").iterdir() if path not in drafts]
        assert not left, f"lock files remain: {left}"

    async def _die(self, choose: random.Random, folder: Path, form: str) -> str:
        """Run a pull that is killed, or ends before, and return how it was killed."""
        output, cache, sync = folder / FORMS[form], str(folder / "cache"), choose.choice([(), ("--sync",)])
        keep = choose.choice([(), ("--keep-images",)]) if form == "squashfs" else ()
        arguments: tuple[str | Path, ...] = ("pull", self._subject.reference, "-o", output, "--force", *sync, *keep)
        if choose.random() < 0.5:
            process = await start(*arguments, cache=cache)
            ending = asyncio.create_task(end(process))
            await asyncio.wait({ending}, timeout=choose.uniform(0.2, 1.1) * self._seconds[form])
            kill_unless_ended(process, ending)
            await ending
            return "at a time"
        call = pick(choose, self._calls[form])
        await run(*arguments, cache=cache, under=call.failing(folder / "log", folder, "signal=SIGKILL"))
        return f"at {call.name}"
