"""A limit that processes share by lock files in the cache."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from fastpull.cache.slots import Slots
from fastpull.cache.store import Store

HOLDER = """
import asyncio, sys
from fastpull.cache.slots import Slots
from fastpull.cache.store import Store

async def hold():
    async with Slots(Store(sys.argv[1]).slot, 2).hold():
        print("held", flush=True)
        await asyncio.sleep(100)

asyncio.run(hold())
"""


async def test_no_more_than_the_places_are_held_at_once(tmp_path: Path) -> None:
    slots = Slots(Store(str(tmp_path)).slot, 3)
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
    assert not [name for name in os.listdir(tmp_path / "v1/locks") if name.startswith("slot")]


async def test_other_processes_count_and_the_dead_do_not(tmp_path: Path) -> None:
    slots = Slots(Store(str(tmp_path)).slot, 2)
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


async def test_a_place_is_given_back_when_its_holder_is_cancelled(tmp_path: Path) -> None:
    slots = Slots(Store(str(tmp_path)).slot, 1)

    async def hold() -> None:
        async with slots.hold():
            await asyncio.sleep(100)

    task = asyncio.create_task(hold())
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(5), slots.hold():
        pass
