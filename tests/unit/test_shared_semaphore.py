"""A semaphore shared by processes through lock files in the cache."""

from __future__ import annotations

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fastpull.cache.locking.file_lock import FileLock
from fastpull.cache.locking.shared_semaphore import SharedSemaphore
from fastpull.cache.store import Store

EXECUTOR = ThreadPoolExecutor(2)
HOLDER = """
import asyncio, sys
from concurrent.futures import ThreadPoolExecutor
from fastpull.cache.locking.shared_semaphore import SharedSemaphore
from fastpull.cache.store import Store

async def hold():
    async with SharedSemaphore(Store(sys.argv[1]).connection_permit, 2, ThreadPoolExecutor(1)).hold():
        print("held", flush=True)
        await asyncio.sleep(100)

asyncio.run(hold())
"""


async def test_no_more_permits_than_the_count_are_held(tmp_path: Path) -> None:
    slots = SharedSemaphore(Store(str(tmp_path)).connection_permit, 3, EXECUTOR)
    now, most = 0, 0

    async def work() -> None:
        nonlocal now, most
        async with slots.hold():
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.01)
            now -= 1

    await asyncio.gather(*(work() for _ in range(12)))
    assert (now, most) == (0, 3)
    await slots.close()
    assert not [name for name in os.listdir(tmp_path / "v1/locks") if name.startswith("slot")]


@pytest.mark.slow
async def test_live_processes_count_and_dead_ones_do_not(tmp_path: Path) -> None:
    slots = SharedSemaphore(Store(str(tmp_path)).connection_permit, 2, EXECUTOR)
    holders = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", HOLDER, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        for _ in range(2)
    ]
    try:
        for holder in holders:
            assert holder.stdout is not None
            assert await asyncio.wait_for(holder.stdout.readline(), 30) == b"held\n"
        waiting = asyncio.create_task(slots.hold().__aenter__())
        await asyncio.sleep(0.3)
        assert not waiting.done()
        holders[0].kill()
        await asyncio.wait_for(waiting, 10)
    finally:
        for holder in holders:
            if holder.returncode is None:
                holder.kill()
            await holder.wait()


async def test_cancellation_releases_a_permit(tmp_path: Path) -> None:
    slots = SharedSemaphore(Store(str(tmp_path)).connection_permit, 1, EXECUTOR)

    async def hold() -> None:
        async with slots.hold():
            await asyncio.sleep(100)

    task = asyncio.create_task(hold())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(5), slots.hold():
        pass


class Probes:
    """Counts the probes of lock files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = FileLock.try_acquire

        def counted(lock: FileLock) -> bool:
            self.count += 1
            return real(lock)

        monkeypatch.setattr(FileLock, "try_acquire", counted)


@pytest.mark.slow
async def test_waiting_tasks_probe_together_with_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand waiting tasks cost the server as many requests as one."""
    store = Store(str(tmp_path))
    others = [store.connection_permit(number) for number in range(4)]
    assert all(lock.try_acquire() for lock in others)
    probes, slots = Probes(monkeypatch), SharedSemaphore(store.connection_permit, 4, EXECUTOR)
    waiting = [asyncio.create_task(slots.hold().__aenter__()) for _ in range(1000)]
    await asyncio.sleep(2.5)
    assert 3 <= probes.count <= 12, "pauses of 50 ms, 100 ms, 200 ms and so on, less the jitter"
    others[2].release()
    await asyncio.wait(waiting, timeout=15, return_when=asyncio.FIRST_COMPLETED)
    assert sum(task.done() for task in waiting) == 1
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await slots.close()


async def test_a_permit_is_passed_from_range_to_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes, slots = Probes(monkeypatch), SharedSemaphore(Store(str(tmp_path)).connection_permit, 2, EXECUTOR)
    for _ in range(100):
        async with slots.hold():
            await asyncio.sleep(0)
    assert probes.count == 1
    await slots.close()
    assert os.listdir(tmp_path / "v1/locks") == []


async def test_an_idle_permit_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastpull.cache.locking.shared_semaphore._IDLE_SECONDS", 0.05)
    slots = SharedSemaphore(Store(str(tmp_path)).connection_permit, 1, EXECUTOR)
    async with slots.hold():
        pass
    async with asyncio.timeout(5):
        while os.listdir(tmp_path / "v1/locks"):  # noqa: ASYNC110  # files have no event
            await asyncio.sleep(0.01)
    async with asyncio.timeout(5), slots.hold():
        pass
    await slots.close()


async def test_other_processes_get_a_permit_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastpull.cache.locking.shared_semaphore._MAX_PASSING_SECONDS", 0.1)
    store = Store(str(tmp_path))
    busy, other = (SharedSemaphore(store.connection_permit, 1, EXECUTOR) for _ in range(2))

    async def work() -> None:
        while True:
            async with busy.hold():
                await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(work()) for _ in range(5)]
    async with asyncio.timeout(30), other.hold():
        pass
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await busy.close()
    await other.close()


async def test_an_error_reaches_a_waiting_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = SharedSemaphore(Store(str(tmp_path)).connection_permit, 2, EXECUTOR)

    def fail(_: FileLock) -> bool:
        raise OSError("no")

    monkeypatch.setattr(FileLock, "try_acquire", fail)
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            await asyncio.wait_for(slots.hold().__aenter__(), 5)
    await slots.close()


async def test_a_representation_tells_permits_and_waiting_tasks(tmp_path: Path) -> None:
    semaphore = SharedSemaphore(Store(str(tmp_path)).connection_permit, 2, EXECUTOR)
    async with semaphore.hold():
        assert repr(semaphore) == "<SharedSemaphore: 1 of 2 permits held, 0 idle, 0 tasks waiting>"
    assert repr(semaphore) == "<SharedSemaphore: 1 of 2 permits held, 1 idle, 0 tasks waiting>"
    await semaphore.close()
    assert repr(semaphore) == "<SharedSemaphore: 0 of 2 permits held, 0 idle, 0 tasks waiting>"
