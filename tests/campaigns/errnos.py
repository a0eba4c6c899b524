"""Filesystem errors: failing system calls, full disks, and a limit of file sizes."""

from __future__ import annotations

import asyncio
import math
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import fastpull
from tests.campaigns.calls import Call, calls_on, hit, pick, recording
from tests.campaigns.campaign import Campaign, Missed
from tests.campaigns.subject import FORMS, Subject, is_old, make_old
from tests.support.processes import ProcessResult, run
from tests.support.registry import FaultyRegistry

_CALLS = (
    "copy_file_range", "fallocate", "fdatasync", "fsync", "ftruncate", "link", "linkat", "mkdir", "mkdirat", "openat",
    "pwrite64", "pwritev", "pwritev2", "rename", "renameat", "renameat2", "syncfs", "write",
)  # fmt: skip
_SYNCS = ("fdatasync", "fsync", "syncfs")
_ERRORS = ("ENOSPC", "EIO", "EDQUOT")
_OPENS = ("EMFILE", "ENOSPC", "EIO")
_ATTEMPTS = 6
"""Attempts until the fault hits a file of the pull; threads divide their work differently in each run."""
_CACHE, _OUTPUT = fastpull.errors.CacheError.exit_code, fastpull.errors.OutputError.exit_code


class Errnos(Campaign):
    """Assert a typed error with its exit code, nothing published, and a successful next run."""

    name = "errno"
    trials = 400

    async def prepare(self, folder: Path) -> None:
        self._registry = await FaultyRegistry().__aenter__()
        self._subject = Subject(self._registry, 4)
        await self._subject.prepare(folder)
        self._calls: dict[tuple[str, bool], dict[str, list[Call]]] = {}
        self._shared = folder

    async def close(self) -> None:
        await self._registry.__aexit__()

    async def trial(self, choose: random.Random, folder: Path) -> None:
        for attempt in range(_ATTEMPTS):
            (folder / str(attempt)).mkdir()
            try:
                return await self._attempt(choose, folder / str(attempt))
            except Missed:
                continue
        raise Missed

    async def _attempt(self, choose: random.Random, folder: Path) -> None:
        form, warm = choose.choice(sorted(FORMS)), choose.random() < 0.25
        output, cache = folder / FORMS[form], folder / "cache"
        if warm:
            await self._subject.pull(folder / "first", cache)
            shutil.rmtree(folder / "first")
        kinds = ["call"] * 8 + ["size"] + (["disk"] if os.geteuid() == 0 else [])
        how = choose.choice(kinds)
        if how == "disk":
            await self._small_disk(choose, folder, form)
            return
        old = choose.random() < 0.5
        if old:
            make_old(output)
        if how == "size":
            limit = int(2 ** choose.uniform(7, 22))
            ended = await run("pull", self._subject.reference, "-o", output, "--force", *_sync(choose),
                              cache=str(cache), under=("prlimit", f"--fsize={limit}"))  # fmt: skip
            what, codes = f"files of at most {limit} bytes", {_CACHE, _OUTPUT}
        else:
            ended, what, codes = await self._one_call(choose, folder, form, warm)
            how = what.partition("(")[0].split()[-1]
        self._judge(ended, what, output, codes, old=old)
        self.report.counts[f"{how}: {'succeeded' if ended.code == 0 else f'exit code {ended.code}'}"] += 1
        await self._subject.recover(output, cache)

    async def _one_call(
        self, choose: random.Random, folder: Path, form: str, warm: bool
    ) -> tuple[ProcessResult, str, set[int]]:
        calls = await self._known_calls(form, warm)
        call = pick(choose, calls)
        error = choose.choice(_OPENS if call.name == "openat" else _ERRORS)
        log = folder / "log"
        ended = await run("pull", self._subject.reference, "-o", folder / FORMS[form], "--force", "--sync",
                          cache=str(folder / "cache"), under=call.failing(log, folder, f"error={error}"))  # fmt: skip
        lines = hit(log, "(INJECTED)")
        if not lines or not all(str(folder) in line for line in lines):
            raise Missed
        what = f"{error} for {lines[0]}"
        if call.name in _SYNCS:
            assert ended.code != 0, f"the failed sync was ignored: {what}"
        codes = {_CACHE if f"{folder}/cache" in line else _OUTPUT for line in lines}
        return ended, what, codes

    async def _known_calls(self, form: str, warm: bool) -> dict[str, list[Call]]:
        """Return the calls of a pull, recorded once."""
        if (form, warm) not in self._calls:
            folder = self._shared / f"{form}-{warm}"
            folder.mkdir()
            if warm:
                await self._subject.pull(folder / "first", folder / "cache")
            ended = await run("pull", self._subject.reference, "-o", folder / FORMS[form], "--force", "--sync",
                              cache=str(folder / "cache"), under=recording(folder / "log", _CALLS))  # fmt: skip
            assert ended.code == 0, ended.err
            self._calls[form, warm] = calls_on(folder / "log", folder)
        return self._calls[form, warm]

    async def _small_disk(self, choose: random.Random, folder: Path, form: str) -> None:
        """Pull with the cache, the output or both on a disk that is too small."""
        disk, size = folder / "disk", int(2 ** choose.uniform(15, math.log2(12 << 20)))
        disk.mkdir()
        cache_on_it, output_on_it = choose.choice([(True, False), (False, True), (True, True)])
        cache = (disk if cache_on_it else folder) / "cache"
        output = (disk if output_on_it else folder) / FORMS[form]
        mount = ["mount", "-t", "tmpfs", "-o"]
        await asyncio.to_thread(subprocess.check_call, [*mount, f"size={size}", "none", disk])
        try:
            ended = await run("pull", self._subject.reference, "-o", output, *_sync(choose), cache=str(cache))
            codes = {_CACHE} if not output_on_it else {_OUTPUT} if not cache_on_it else {_CACHE, _OUTPUT}
            self._judge(ended, f"a disk of {size} bytes, {cache_on_it=}, {output_on_it=}", output, codes, old=False)
            self.report.counts[f"disk: {'large enough' if ended.code == 0 else f'exit code {ended.code}'}"] += 1
            await asyncio.to_thread(subprocess.check_call, ["mount", "-o", "remount,size=64m", disk])
            await self._subject.recover(output, cache)
        finally:
            await asyncio.to_thread(subprocess.check_call, ["umount", disk])

    def _judge(self, ended: ProcessResult, what: str, output: Path, codes: set[int], *, old: bool) -> None:
        where = f"after {what}: exit code {ended.code}, {ended.err}"
        assert "Traceback" not in ended.err, f"a traceback {where}"
        if ended.code == 0:
            self._subject.check(output)
            return
        assert ended.code in codes, f"expected an exit code of {codes}, {where}"
        assert re.search(r"^fastpull: error: (cache|output): [^:]+.*: \S+", ended.err, re.MULTILINE), (
            f"unclear message {where}"
        )
        if old:
            assert is_old(output), f"the old output is gone {where}"
        else:
            assert not os.path.lexists(output), f"published {where}"


def _sync(choose: random.Random) -> tuple[str, ...]:
    return choose.choice([(), ("--sync",)])
