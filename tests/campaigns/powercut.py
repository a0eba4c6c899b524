"""Power cuts: unwritten data is lost, and the machine boots again."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import time
import uuid
from pathlib import Path

import fastpull
from fastpull.cache.blob_metadata import BlobMetadata
from tests.campaigns.campaign import Campaign, Unavailable
from tests.campaigns.subject import FORMS, Subject, is_old, make_old
from tests.support.disk import Disk, DiskCut
from tests.support.processes import end, kill_unless_ended, run, start
from tests.support.registry import FaultyRegistry, slow

_NOISE = (5 << 20, 3 << 20)
_RATE = 30 << 20
_MAX_CUTS = 2
_BOOT = """mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@" """


class PowerCut(Campaign):
    """Assert that after a cut no wrong data is trusted, the next pull needs no help, and synced data is complete.

    A trial has one or two boots of a disk with cache and output. Each boot has its own boot id, and ends with a cut
    during or shortly after a pull or a warm, with or without ``--sync``.
    """

    name = "powercut"
    trials = 300

    async def prepare(self, folder: Path) -> None:
        self._registry = await FaultyRegistry().__aenter__()
        if os.geteuid() != 0 or shutil.which("mkfs.ext4") is None:
            raise Unavailable("a separate disk needs root and mkfs.ext4")
        self._disk = Disk(folder)
        try:
            self._disk.format()
            self._disk.mount()
            self._disk.cut(DiskCut.ALL)
            self._disk.unmount()
        except (OSError, subprocess.CalledProcessError) as error:
            raise Unavailable(f"this kernel cannot cut the power of a disk ({error})") from error
        self._subject = Subject(self._registry, 4, _NOISE)
        await self._subject.prepare(folder)
        self._registry.faults = [slow(_RATE)]
        began = time.monotonic()
        ended = await run("pull", self._subject.reference, "-o", folder / "calm", cache=str(folder / "calm-cache"))
        assert ended.code == 0, ended.err
        self._seconds = time.monotonic() - began

    async def close(self) -> None:
        await self._registry.__aexit__()

    async def trial(self, choose: random.Random, folder: Path) -> None:
        form = choose.choice(("cache", *sorted(FORMS)))
        output = self._disk.place / FORMS.get(form, "out")
        await asyncio.to_thread(self._disk.format)
        await asyncio.to_thread(self._disk.mount)
        try:
            old = form != "cache" and choose.random() < 0.5
            if old:
                make_old(output)
                await asyncio.to_thread(self._disk.settle)
            for _ in range(choose.randint(1, _MAX_CUTS)):
                await self._boot(choose, folder, form, output)
            await self._recover(choose, folder, output)
        finally:
            await asyncio.to_thread(self._disk.unmount)

    async def _boot(self, choose: random.Random, folder: Path, form: str, output: Path) -> None:
        """Run one boot: a pull, a cut, and checks of the disk."""
        sync, what, under = choose.random() < 0.5, choose.choice(list(DiskCut)), _booted(folder)
        before = self._state(output)
        if choose.random() < 0.2:
            ended = await run("warm", self._subject.reference, cache=self._cache, under=under)
            assert ended.code == 0, ended.err
        arguments: tuple[str | Path, ...] = ("pull", self._subject.reference, "-o", output, "--force")
        if form == "cache":
            arguments = ("warm", self._subject.reference)
        process = await start(*arguments, *(("--sync",) if sync else ()), cache=self._cache, under=under)
        ending = asyncio.create_task(end(process))
        await self._pass(choose, choose.uniform(0.3, 1.4) * self._seconds)
        is_done = ending.done()
        await asyncio.to_thread(self._disk.cut, what)
        kill_unless_ended(process, ending)
        ended = await ending
        assert not is_done or ended.code == 0, ended.err
        await self._registry.wait_until_idle()
        await asyncio.to_thread(self._disk.unmount)
        await asyncio.to_thread(self._disk.mount, choose.choice(("data=ordered", "data=writeback")))
        self._check_metadata()
        after = self._state(output)
        if sync:
            self._check_synced(form, before, after, is_done)
        how = f"{form}{', synced' if sync else ''}{', ended' if is_done else ''}"
        self.report.counts[how if form == "cache" else f"{how}: {after}"] += 1

    async def _pass(self, choose: random.Random, seconds: float) -> None:
        """Wait, with or without a write-back of dirty pages."""
        share = choose.random()
        await asyncio.sleep(share * seconds)
        if choose.random() < 0.5:
            await asyncio.to_thread(self._disk.settle)
        await asyncio.sleep((1 - share) * seconds)

    def _check_metadata(self) -> None:
        for path in Path(self._cache).glob("v1/blobs/*/*.seal"):
            metadata, blob = BlobMetadata.from_bytes(path.read_bytes()), path.with_suffix("")
            if metadata is not None and metadata.synced and blob.exists():
                digest = fastpull.Digest(blob.parent.name, blob.name)
                assert fastpull.Digest.of(blob.read_bytes()) == digest, (
                    f"metadata vouches for a wrong blob: {blob.name}"
                )

    def _check_synced(self, form: str, before: str, after: str, is_done: bool) -> None:
        if not is_done:
            assert form == "cache" or after in (before, "right"), (
                f"got an output that is {after}, expected {before} or right"
            )
            return
        assert form == "cache" or after == "right", f"got a synced output that is {after}, expected right"
        assert self._subject.durable(Path(self._cache)) == self._subject.size, "synced blobs are missing"
        found = fastpull.cache.CacheManager(self._cache).verify(dry_run=True)
        assert not found.corrupt, f"{len(found.corrupt)} synced blobs are wrong"

    def _state(self, output: Path) -> str:
        if not os.path.lexists(output):
            return "absent"
        if is_old(output):
            return "old"
        try:
            self._subject.check(output)
        except AssertionError:
            return "torn"
        return "right"

    async def _recover(self, choose: random.Random, folder: Path, output: Path) -> None:
        """Boot again, and check that no torn data is trusted and that no help is needed."""
        under = _booted(folder)
        if choose.random() < 0.5:
            ended = await run("warm", self._subject.reference, cache=self._cache, under=under)
            assert ended.code == 0, ended.err
            found = fastpull.cache.CacheManager(self._cache).verify(dry_run=True)
            assert not found.corrupt, f"{len(found.corrupt)} wrong blobs of an earlier boot were trusted"
        pulling = ("pull", self._subject.reference, "-o", output)
        if os.path.lexists(output):
            ended = await run(*pulling, cache=self._cache, under=under)
            assert ended.code in (0, 31), ended.err
            assert ended.code == 31 or self._state(output) == "right", "a torn output was trusted"
        ended = await run(*pulling, "--force", cache=self._cache, under=under)
        assert ended.code == 0, ended.err
        await self._subject.recover(output, Path(self._cache))

    @property
    def _cache(self) -> str:
        return str(self._disk.place / "cache")


def _booted(folder: Path) -> tuple[str, ...]:
    """Return the command that gives a process a new boot id."""
    boot_id = folder / f"boot-{uuid.uuid4()}"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    return ("unshare", "--mount", "sh", "-c", _BOOT, str(boot_id))
