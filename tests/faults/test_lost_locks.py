"""Pulls on nodes whose kernels share nothing, one of which is stopped for longer than its lease."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

import fastpull
from fastpull.cache.locking.owner import Owner
from fastpull.config.settings import Settings
from tests.support.layers import file, publish, stored
from tests.support.processes import ProcessResult, end
from tests.support.registry import FaultyRegistry, slow
from tests.support.trees import names

CONTENT = os.urandom(12 << 20)

NODE = """
import sys
from fastpull.cache.locking import heartbeat as beats, file_lock as locks, owner as owners
owners.boot_id = lambda: sys.argv[1]
locks.LEASE_SECONDS, beats.BEAT_SECONDS = 2.0, 0.2
from fastpull.cli import main
sys.exit(main(sys.argv[2:]))
"""


async def start(boot: str, *arguments: str | Path, cache: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", NODE, boot, *map(str, arguments), env={**os.environ, "FASTPULL_CACHE": cache},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def stop_while_it_downloads(process: asyncio.subprocess.Process, registry: FaultyRegistry) -> None:
    async with asyncio.timeout(30):
        while sum(registry.sent.values()) < len(CONTENT) // 4:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    os.kill(process.pid, signal.SIGSTOP)


async def until_taken_over(boot: str, locks: Path) -> None:
    """Wait until a lock belongs to a process with another boot ID."""
    async with asyncio.timeout(60):
        while True:
            for path in locks.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    owner = Owner.from_bytes(path.read_bytes())
                    if owner is not None and owner.boot == boot:
                        return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("verb", ["pull", "warm", "keep"])
async def test_a_resumed_process_uses_the_download_of_the_new_owner(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, verb: str
) -> None:
    registry.faults = [slow(4 << 20)]
    reference = publish(registry, stored([file("f", CONTENT)], bytes))

    def command(name: str) -> list[str]:
        outputs = {"pull": [f"{tmp_path}/{name}/"], "keep": [f"{tmp_path}/{name}.sqsh", "--keep-images"], "warm": []}
        output = outputs[verb]
        return [
            "warm" if verb == "warm" else "pull",
            reference,
            "--locks",
            "lease",
            *(["-o", *output] if output else []),
        ]

    one = await start("one", *command("one"), cache=settings.cache)
    await stop_while_it_downloads(one, registry)
    other = await start("other", *command("other"), cache=settings.cache)
    await until_taken_over("other", Path(settings.cache, "v1/locks"))
    os.kill(one.pid, signal.SIGCONT)
    ended: tuple[ProcessResult, ProcessResult] = await asyncio.gather(end(one), end(other))
    assert [each.code for each in ended] == [0, 0], ended
    assert "another process has taken over" in ended[0].err
    cache = fastpull.cache.CacheManager(settings.cache)
    assert cache.verify().is_sound
    assert os.listdir(f"{settings.cache}/v1/locks") == []
    assert cache.usage().partial == 0
    if verb == "pull":
        assert [(tmp_path / name / "f").read_bytes() == CONTENT for name in ("one", "other")] == [True, True]
        assert names(tmp_path / "one") == {"f"}
    elif verb == "keep":
        assert (tmp_path / "one.sqsh").read_bytes() == (tmp_path / "other.sqsh").read_bytes()
        assert cache.usage().images == 1
