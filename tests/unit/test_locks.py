from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from fastpull.cache.locks import FileLock


def test_one_holder_at_a_time_also_within_a_process(tmp_path: Path) -> None:
    one, other = FileLock(str(tmp_path / "lock")), FileLock(str(tmp_path / "lock"))
    assert one.try_acquire()
    assert not other.try_acquire()
    one.release()
    assert other.try_acquire()
    other.release()


def test_the_file_goes_with_the_lock(tmp_path: Path) -> None:
    lock = FileLock(str(tmp_path / "lock"))
    assert lock.try_acquire()
    assert (tmp_path / "lock").exists()
    lock.release()
    lock.release()
    assert not (tmp_path / "lock").exists()


async def test_many_tasks_are_never_in_it_together(tmp_path: Path) -> None:
    inside = most = 0

    async def work() -> None:
        nonlocal inside, most
        lock = FileLock(str(tmp_path / "lock"))
        await lock.acquire()
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.001)
        inside -= 1
        lock.release()

    await asyncio.gather(*(work() for _ in range(10)))
    assert most == 1


def test_a_killed_holder_lets_go(tmp_path: Path) -> None:
    program = (
        "import sys, time; from fastpull.cache.locks import FileLock; "
        "assert FileLock(sys.argv[1]).try_acquire(); print('held', flush=True); time.sleep(60)"
    )
    # the lock object is garbage at once, but its descriptor is not closed by that
    holder = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "lock")], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    lock = FileLock(str(tmp_path / "lock"))
    assert not lock.try_acquire()
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert lock.try_acquire()
    lock.release()
