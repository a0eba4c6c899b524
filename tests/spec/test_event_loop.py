"""No file of a cache is accessed on the event loop, because a slow server would stop all downloads."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fastpull
from fastpull.cache.directory import CacheDirectory
from fastpull.cache.locking.file_lock import FileLock
from fastpull.cache.locking.heartbeat import Heartbeat
from fastpull.config.settings import Settings
from tests.support.layers import file, publish
from tests.support.registry import FaultyRegistry

SLOW_SECONDS = 0.3


@pytest.fixture
def off_the_loop(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Cache directories opened on the event loop."""
    found, real = list[str](), CacheDirectory.at.__func__  # type: ignore[attr-defined]

    def at(cls: Any, path: str, *rest: Any) -> CacheDirectory:
        if asyncio._get_running_loop() is not None:
            found.append(path)
        return real(cls, path, *rest)  # type: ignore[no-any-return]

    monkeypatch.setattr(CacheDirectory, "at", classmethod(at))
    return found


async def test_a_pull_accesses_the_cache_only_on_threads(
    registry: FaultyRegistry, settings: Settings, off_the_loop: list[str], tmp_path: Path
) -> None:
    reference = publish(registry, [file("a", os.urandom(300_000))], [file("b", b"b")])
    settings = replace(settings, site_connections=2, job="step", keep_images=True)
    for name in ("one.sqsh", "two.sqsh", "three"):
        async with fastpull.Client(settings) as client:
            await client.pull(reference, tmp_path / name)
    assert not off_the_loop


async def test_a_slow_lock_does_not_block_the_event_loop(tmp_path: Path) -> None:
    def slow_directory(_: bool) -> CacheDirectory:
        time.sleep(SLOW_SECONDS)
        return CacheDirectory.at(str(tmp_path))

    lock, longest = FileLock(str(tmp_path / "lock"), open_directory=slow_directory), 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - began)

    with ThreadPoolExecutor(1) as executor:
        ticking = asyncio.create_task(tick())
        await lock.acquire(executor)
        await lock.release_async(executor)
        waiting = asyncio.create_task(lock.acquire(executor))
        await asyncio.sleep(SLOW_SECONDS / 3)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        ticking.cancel()
    assert longest < SLOW_SECONDS / 2
    assert os.listdir(tmp_path) == [], "a cancelled task leaves no lock behind"


def test_a_slow_heartbeat_delays_no_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file on a hanging server blocks only the heartbeat thread."""
    monkeypatch.setattr("fastpull.cache.locking.heartbeat.HEARTBEAT_SECONDS", 0.01)
    touched, may_go_on, real, beats = threading.Event(), threading.Event(), os.utime, Heartbeat()
    seen = set[tuple[int, int]]()

    def hang(fd: int) -> None:
        touched.set()
        may_go_on.wait(10)
        seen.add((os.fstat(fd).st_dev, os.fstat(fd).st_ino))
        real(fd)

    monkeypatch.setattr("fastpull.cache.locking.heartbeat.os.utime", hang)
    first, second = (os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("first", "second"))
    inode = os.fstat(first).st_dev, os.fstat(first).st_ino
    beats.add(first)
    assert touched.wait(5)
    began = time.monotonic()
    beats.add(second)
    beats.remove(first)
    os.close(first)
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)  # reuses the first descriptor number
    assert time.monotonic() - began < 1
    assert other == first
    monkeypatch.undo()
    may_go_on.set()
    beats.remove(second)
    deadline = time.monotonic() + 5
    while not seen and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen == {inode}, "the file that was added, whatever has its number by now"
    os.close(second)
    os.close(other)
