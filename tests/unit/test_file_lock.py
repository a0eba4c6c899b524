from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fastpull.cache.locking.file_lock import FileLock
from fastpull.cache.locking.mounts import find_local_lock_option, local_lock_option
from fastpull.errors import CacheError


def test_a_lock_has_one_holder_even_within_a_process(tmp_path: Path) -> None:
    one, other = FileLock(str(tmp_path / "lock")), FileLock(str(tmp_path / "lock"))
    assert one.try_acquire()
    assert not other.try_acquire()
    one.release()
    assert other.try_acquire()
    other.release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_filesystem_without_locks_is_an_error(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_fd: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(CacheError, match=r"this filesystem has no locks: .*lock\. Choose another filesystem"):
        FileLock(str(tmp_path / "lock"), method="flock").try_acquire()
    assert os.listdir(tmp_path) == []
    lock, other = FileLock(str(tmp_path / "lock")), FileLock(str(tmp_path / "lock"))
    assert lock.try_acquire(), "others do without"
    assert not other.try_acquire()
    lock.release()


def test_locks_that_do_not_exclude_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    lock = FileLock(str(tmp_path / "lock"), method="flock")
    with pytest.raises(CacheError, match="the same lock twice"):
        lock.try_acquire()
    assert not lock.held


def test_the_check_of_a_lock_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    lock, other = FileLock(str(tmp_path / "lock")), FileLock(str(tmp_path / "lock"))
    assert lock.try_acquire()
    assert not other.try_acquire()
    assert len(os.listdir("/proc/self/fd")) == before + 2, "its own, and one for the signs of life"
    lock.release()
    assert len(os.listdir("/proc/self/fd")) == before


_MOUNTS = """\
22 1 0:20 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro
40 22 0:41 / /home rw,relatime - nfs4 server:/home rw,vers=4.2,local_lock=none,addr=10.0.0.1
41 22 0:42 / /scratch rw,relatime - nfs server:/scratch rw,vers=3,nolock,local_lock=all,addr=10.0.0.1
42 22 0:43 / /flock rw - nfs server:/flock rw,vers=3,local_lock=flock
43 22 0:44 / /posix rw - nfs server:/posix rw,vers=3,local_lock=posix
44 22 0:45 / /lustre rw shared:7 master:2 - lustre 10.0.0.2@tcp:/fs rw,localflock,user_xattr
45 22 0:46 / /lustre2 rw - lustre 10.0.0.2@tcp:/fs rw,flock
46 22 0:47 / /odd rw - ext4 /dev/nolock rw,nolock
47 22 0:48 / /share rw - cifs //server/share rw,nobrl
"""


@pytest.mark.parametrize(
    ("minor", "expected"),
    [
        (20, ""),
        (41, ""),
        (42, "nfs with local_lock=all"),
        (43, "nfs with local_lock=flock"),
        (44, ""),
        (45, "lustre with localflock"),
        (46, ""),
        (47, ""),
        (48, "cifs with nobrl"),
        (99, ""),
    ],
)
def test_mount_options_reveal_locks_limited_to_one_node(minor: int, expected: str) -> None:
    assert find_local_lock_option(_MOUNTS, os.makedev(0, minor)) == expected


@pytest.mark.parametrize("name", ["a\rb", "a\x0bb", "a\x1cb", "a\x85b", "a\xa0b", "a\u2028b"])
def test_mount_points_with_any_name_are_parsed_as_one_line(name: str) -> None:
    mounts = f"1 0 0:7 / /{name} rw - fuse x rw\n{_MOUNTS}"
    for minor in (7, 41, 42):
        assert find_local_lock_option(mounts, os.makedev(0, minor)) == find_local_lock_option(
            _MOUNTS, os.makedev(0, minor)
        )


def test_local_filesystems_have_no_local_lock_option(tmp_path: Path) -> None:
    assert local_lock_option(str(tmp_path)) == ""


def test_release_removes_the_lock_file(tmp_path: Path) -> None:
    lock = FileLock(str(tmp_path / "lock"))
    assert lock.try_acquire()
    assert (tmp_path / "lock").exists()
    lock.release()
    lock.release()
    assert not (tmp_path / "lock").exists()


async def test_concurrent_tasks_never_hold_the_lock_together(tmp_path: Path) -> None:
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


def test_death_of_the_holder_releases_the_lock(tmp_path: Path) -> None:
    program = (
        "import sys, time; from fastpull.cache.locking.file_lock import FileLock; "
        "assert FileLock(sys.argv[1]).try_acquire(); print('held', flush=True); time.sleep(60)"
    )
    # the lock object is collected at once, which does not close its descriptor
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


def test_a_representation_tells_path_and_state(tmp_path: Path) -> None:
    lock = FileLock(str(tmp_path / "lock"))
    assert repr(lock) == f"<FileLock {tmp_path}/lock: not held>"
    assert lock.try_acquire()
    assert repr(lock) == f"<FileLock {tmp_path}/lock: held>"
    lock.release()


async def test_acquisition_wait_and_release_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "fastpull.cache.locking")
    lock, other = FileLock(str(tmp_path / "lock")), FileLock(str(tmp_path / "lock"))
    assert lock.try_acquire()
    waiting = asyncio.create_task(other.acquire())
    while len(caplog.messages) < 2:  # noqa: ASYNC110  # a log has no event
        await asyncio.sleep(0.01)
    lock.release()
    await waiting
    other.release()
    path = f"{tmp_path}/lock"
    assert caplog.messages == [
        f"acquired lock {path}",
        f"waiting for lock {path}",
        f"released lock {path}",
        f"acquired lock {path}",
        f"released lock {path}",
    ]
