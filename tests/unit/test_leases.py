"""Locks between nodes whose kernels share nothing, simulated by processes with their own boot IDs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from fastpull.cache.locking import file_lock, heartbeat
from fastpull.cache.locking import owner as owners
from fastpull.cache.locking.file_lock import FileLock
from fastpull.cache.locking.owner import Owner
from fastpull.cache.store import Store
from fastpull.errors import LockLost
from fastpull.oci.digest import Digest

pytestmark = pytest.mark.slow

LEASE_SECONDS, HEARTBEAT_SECONDS = 2.0, 0.2

NODE = f"""
import asyncio, os, sys, time
from fastpull.cache.locking import heartbeat, file_lock, owner as owners
from fastpull.cache.store import Store
from fastpull.errors import LockLost
from fastpull.oci.digest import Digest

owners.boot_id = lambda: sys.argv[1]
file_lock.LEASE_SECONDS, heartbeat.HEARTBEAT_SECONDS = {LEASE_SECONDS}, {HEARTBEAT_SECONDS}
skew = float(os.environ.get("SKEW", "0"))
if skew:
    real = os.utime
    os.utime = lambda fd: real(fd, (time.time() + skew, time.time() + skew))

def say(*words):
    print(*words, flush=True)
"""

HOLD = """
lock = file_lock.FileLock(sys.argv[2], method=sys.argv[3])
asyncio.run(lock.acquire())
say("held", lock.is_suspect)
for line in sys.stdin:
    if line == "release\\n":
        lock.release()
    try:
        lock.check()
        say("mine")
    except LockLost:
        say("lost")
"""

FETCH = """
content = b"0123456789" * 1000
store, digest = Store(sys.argv[2], "lease"), Digest.of(content)
lock = store.lock(digest)
asyncio.run(lock.acquire())
partial = store.begin(digest, len(content), lock)
partial.write(partial.resumed, [content[partial.resumed : partial.resumed + 5000]])
say("resumed", partial.resumed)
for line in sys.stdin:
    try:
        if line == "spoil\\n":
            os.pwrite(partial._data, b"XXXX", 0)
        elif partial.gaps():
            partial.write(5000, [content[5000:]])
        else:
            store.publish(partial, "0" * 16, False)
        say("done")
    except LockLost:
        say("lost")
"""


class LeaseNode:
    """A process with its own boot ID."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def says(self, patience_seconds: float = 30) -> str:
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), patience_seconds)).decode().strip()

    async def is_told(self, what: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n".encode())
        return await self.says()

    async def is_silent(self, seconds: float) -> bool:
        try:
            await self.says(seconds)
        except TimeoutError:
            return True
        return False


@contextlib.asynccontextmanager
async def node(program: str, *arguments: str | Path, skew: float = 0.0) -> AsyncIterator[LeaseNode]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", NODE + program, *map(str, arguments), env={**os.environ, "SKEW": str(skew)},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield LeaseNode(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


WAYS = [("auto", "auto"), ("auto", "lease"), ("lease", "auto"), ("flock", "lease")]


@pytest.mark.parametrize(("first", "second"), WAYS, ids=["-".join(ways) for ways in WAYS])
async def test_a_live_owner_keeps_the_lock_whatever_is_known_of_it(tmp_path: Path, first: str, second: str) -> None:
    path = tmp_path / "lock"
    async with node(HOLD, "one", path, first) as one:
        assert await one.says() == "held False"
        async with node(HOLD, "other", path, second) as other:
            waiting = asyncio.create_task(other.says())
            await asyncio.sleep(1.5 * LEASE_SECONDS)
            assert not waiting.done()
            assert await one.is_told("look") == "mine"
            assert await one.is_told("release") == "lost"
            assert await waiting == "held False"
            assert await other.is_told("look") == "mine"


@pytest.mark.parametrize("skew", [-7200.0, 7200.0], ids=["late clock", "early clock"])
async def test_the_lock_of_a_dead_node_is_taken_after_the_lease_and_not_before(tmp_path: Path, skew: float) -> None:
    path = tmp_path / "lock"
    async with node(HOLD, "one", path, "auto", skew=skew) as one:
        assert await one.says() == "held False"
        async with node(HOLD, "other", path, "auto") as other:
            assert await other.is_silent(1.5 * LEASE_SECONDS)
            one.process.kill()
            began = time.monotonic()
        async with node(HOLD, "third", path, "lease", skew=-skew) as third:
            assert await third.says() == "held True", "the one before may come back"
            assert time.monotonic() - began >= LEASE_SECONDS - HEARTBEAT_SECONDS
            third.process.kill()
        async with node(HOLD, "third", path, "lease") as again:
            assert await again.says() == "held True", "it was not the third's alone"


async def test_a_death_on_the_same_node_is_noticed_at_once(tmp_path: Path) -> None:
    """The lease outlasts the test."""
    program = "file_lock.LEASE_SECONDS = 1e6\n" + HOLD
    for way in ("auto", "lease", "flock"):
        async with node(program, "one", tmp_path / way, way) as one:
            assert await one.says() == "held False"
            async with node(program, "one", tmp_path / way, way) as other:
                assert await other.is_silent(0.3)
                one.process.kill()
                await one.process.wait()
                assert await other.says() == "held False"


async def test_waiting_processes_take_the_lock_of_a_dead_node_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    async with node(HOLD, "dead", path, "lease") as dead:
        await dead.says()
        async with contextlib.AsyncExitStack() as stack:
            ways = ("auto", "lease", "auto", "lease")
            nodes = [
                await stack.enter_async_context(node(HOLD, str(number), path, way)) for number, way in enumerate(ways)
            ]
            dead.process.kill()
            waiting = {asyncio.create_task(one.says()): one for one in nodes}
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                assert len(done) == 1
                holder = waiting.pop(done.pop())
                await asyncio.sleep(0.2)
                assert not any(task.done() for task in waiting)
                assert await holder.is_told("look") == "mine"
                assert await holder.is_told("release") == "lost"
    assert os.listdir(tmp_path) == []


async def test_a_resumed_owner_notices_the_loss_and_leaves_the_lock_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    async with node(HOLD, "one", path, "lease") as one:
        assert await one.says() == "held False"
        async with node(HOLD, "other", path, "auto") as other:
            os.kill(one.process.pid, signal.SIGSTOP)
            assert await other.says() == "held True"
            os.kill(one.process.pid, signal.SIGCONT)
            assert await one.is_told("look") == "lost"
            assert await one.is_told("release") == "lost"
            assert await other.is_told("look") == "mine"


async def test_a_resumed_owner_neither_publishes_nor_touches_the_new_download(tmp_path: Path) -> None:
    content = b"0123456789" * 1000
    digest = Digest.of(content)
    async with node(FETCH, "one", tmp_path) as one:
        assert await one.says() == "resumed 0"
        os.kill(one.process.pid, signal.SIGSTOP)
        async with node(FETCH, "other", tmp_path) as other:
            assert await other.says() == "resumed 5000", "what was there is used"
            os.kill(one.process.pid, signal.SIGCONT)
            assert await one.is_told("spoil") == "done", "it has its files open still"
            assert await one.is_told("write") == "done"
            assert await one.is_told("publish") == "lost"
            assert Store(str(tmp_path)).find(digest) is None
            assert await other.is_told("publish") == "done"
            blob = Store(str(tmp_path)).find(digest)
            assert blob is not None
            buffer = bytearray(len(content))
            blob.readinto(memoryview(buffer), 0)
            blob.close()
            assert bytes(buffer) == content
    assert os.listdir(tmp_path / "v1/locks") == []


def test_a_takeover_between_check_and_rename_prevents_publication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, content = Store(str(tmp_path)), b"content"
    digest = Digest.of(content)
    lock = store.lock(digest)
    assert lock.try_acquire()
    partial = store.begin(digest, len(content), lock)
    partial.write(0, [content])

    def check(_: FileLock) -> None:
        os.unlink(partial.data_path)
        with open(partial.data_path, "wb") as file:
            file.write(b"half")

    monkeypatch.setattr(FileLock, "check", check)
    with pytest.raises(LockLost):
        store.publish(partial, "0" * 16, sync=False)
    assert store.find(digest) is None
    with open(partial.data_path, "rb") as file:
        assert file.read() == b"half", "the other one goes on with it"
    partial.close()


@pytest.mark.parametrize("content", [b"", b"{}\n", b"rubbish" * 1000], ids=["empty", "short", "long"])
def test_a_lock_file_without_an_owner_counts_until_it_is_old(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").write_bytes(content)
    lock = FileLock(str(tmp_path / "lock"))
    assert not lock.try_acquire()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + file_lock.LEASE_SECONDS + 1)
    assert lock.try_acquire()
    assert lock.is_suspect
    lock.release()
    (tmp_path / "lock").write_bytes(content)
    os.utime(tmp_path / "lock", (0, 0))
    old = FileLock(str(tmp_path / "lock"))
    assert old.try_acquire(), "who looks only once goes by the filesystem's time"
    old.release()


def test_locks_work_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "no links")

    monkeypatch.setattr(os, "link", refuse)
    one, other = FileLock(str(tmp_path / "lock")), FileLock(str(tmp_path / "lock"))
    assert one.try_acquire()
    assert not other.try_acquire()
    assert os.listdir(tmp_path) == ["lock"]
    one.check()
    one.release()
    assert other.try_acquire()
    other.release()


def test_an_owner_reads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner.me(has_flock=True, is_suspect=False)
    assert Owner.from_bytes(owner.to_bytes()) == owner
    assert (owner.is_here, owner.has_ended()) == (True, False)
    assert replace(owner, started=owner.started + 1).has_ended(), "another process has its number"
    monkeypatch.setattr(owners, "boot_id", lambda: "another")
    assert (owner.is_here, replace(owner, started=1).has_ended()) == (False, False), "nobody knows"


def test_a_heartbeat_changes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "HEARTBEAT_SECONDS", 0.01)
    lock = FileLock(str(tmp_path / "lock"))
    assert lock.try_acquire()
    os.utime(tmp_path / "lock", (0, 0))
    while not os.stat(tmp_path / "lock").st_mtime:
        time.sleep(0.01)
    lock.release()
