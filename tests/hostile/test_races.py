"""A process swaps staging directories for links to a canary while fastpull writes into them.

Only the same user or root can enter a staging directory. The swap has to be harmless all the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastpull.errors import FastpullError
from fastpull.layers.archive import archive
from fastpull.sinks.base import Resources
from fastpull.sinks.directory.sink import Directory
from tests.hostile.running import make_canary, state_of, write
from tests.support.layers import Member, device, fifo, file, folder, hardlink, opaque, symlink, whiteout

SECONDS = 3

_SWAPPER = """
import os, sys
folder, canary = sys.argv[1:]
print("ready", flush=True)
while True:
    for staging in os.listdir(folder):
        for name in ("d", "e", "d/d", "old", "f"):
            path = f"{folder}/{staging}/root/{name}"
            aside = f"{folder}/{staging}/aside"
            try:
                os.rename(path, aside)
                os.symlink(canary, path)
                os.unlink(path)
                os.rename(aside, path)
            except OSError:
                pass
"""


def busy_layers() -> list[list[Member]]:
    """Return layers that create, move and remove many entries below few directories, also with names of the canary."""
    attributes = {"mode": 0o777, "uid": 5, "xattrs": ((b"user.a", b"evil"),)}
    lower = [
        part
        for n in range(60)
        for part in (
            file(f"d/file{n}", b"evil", **attributes),
            file("d/file", b"evil", **attributes),
            file(f"e/folder/{n}", b"evil"),
            file(f"d/d/x{n}/y", b"evil", **attributes),
            file(f"old/{n}", b"evil"),
        )
    ]
    upper = [
        *(file(f"d/file{n}", b"evil again", **attributes) for n in range(0, 60, 2)),
        whiteout("old"),
        opaque("e"),
        folder("d/folder", 0o777, uid=5),
        file("d/folder/inner", b"evil", **attributes),
        symlink("d/link", "file"),
        fifo("d/pipe", mode=0o666),
        device("d/null", 1, 3, mode=0o666),
        hardlink("d/hard", "d/file1"),
    ]
    return [lower, upper]


@contextlib.contextmanager
def swapping(outputs: Path, canary: Path) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", _SWAPPER, outputs, canary], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
        assert process.poll() is None, "the swapper ran to the end"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.mark.root
def test_links_swapped_into_staging_are_not_followed(tmp_path: Path) -> None:
    canary, outputs = make_canary(tmp_path), tmp_path / "outputs"
    outputs.mkdir()
    before = state_of(canary)
    tars = [archive(layer) for layer in busy_layers()]
    ends = {"done": 0, "refused": 0}
    with swapping(outputs, canary):
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            try:
                write(Directory(outputs / "out", force=True), tars, Resources(2, 2))
                ends["done"] += 1
            except FastpullError:
                ends["refused"] += 1
            assert state_of(canary) == before, ends
    assert ends["refused"], "the swaps were noticed"


_REMOVER = """
import os, signal, sys, time
from fastpull.native import remove_tree
folder, seconds = sys.argv[1], float(sys.argv[2])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.chdir(folder)
swapper = os.fork()
while swapper == 0:
    try:
        os.rename("d", "aside")
        os.symlink("canary", "d")
        os.unlink("d")
        os.rename("aside", "d")
    except OSError:
        pass
fd = os.open(".", os.O_RDONLY)
until = time.monotonic() + seconds
while time.monotonic() < until:
    try:
        os.mkdir("d", 0)
    except OSError:
        pass
    remove_tree(fd, b"d")
os.kill(swapper, signal.SIGKILL)
os.waitpid(swapper, 0)
"""


@pytest.mark.root
def test_removal_does_not_change_modes_through_links() -> None:
    """An unprivileged user makes unreadable directories accessible before removing them."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        canary = make_canary(Path(name))
        os.chown(canary, 65534, 65534)
        before = state_of(canary)
        done = subprocess.run([sys.executable, "-c", _REMOVER, name, str(SECONDS)], check=False, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        assert state_of(canary) == before
