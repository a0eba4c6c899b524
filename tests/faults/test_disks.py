"""Filesystems that are full, read-only, or not ours."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastpull
from fastpull.config import Settings
from fastpull.errors import CacheError, OutputError
from tests.support.layers import file, publish
from tests.support.processes import run
from tests.support.registry import FaultyRegistry
from tests.support.trees import names

CONTENT = os.urandom(6 << 20)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 4 MiB."""
    where = tmp_path / "small"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", where], check=True)
    yield where
    subprocess.run(["umount", where], check=True)


@pytest.mark.root
async def test_a_full_disk_under_the_output(registry: FaultyRegistry, settings: Settings, small_disk: Path) -> None:
    reference = publish(registry, [file("small", b"x"), file("d/large", CONTENT)])
    async with fastpull.Client(settings) as client:
        with pytest.raises(OutputError, match="no space left on device.*d/large") as caught:
            await client.pull(reference, small_disk / "out")
        assert caught.value.exit_code == 31
        assert os.listdir(small_disk) == []
        await client.pull(reference, small_disk.parent / "out")
    assert names(small_disk.parent / "out") == {"small", "d", "d/large"}


@pytest.mark.root
async def test_a_full_disk_under_the_cache(
    registry: FaultyRegistry, settings: Settings, small_disk: Path, tmp_path: Path
) -> None:
    reference = publish(registry, [file("large", CONTENT)])
    async with fastpull.Client(cache=small_disk / "cache") as client:
        with pytest.raises(CacheError, match="no space left on device") as caught:
            await client.pull(reference, tmp_path / "out")
    assert caught.value.exit_code == 30
    assert not (tmp_path / "out").exists()
    assert not fastpull.Cache(small_disk / "cache").verify().corrupt


@pytest.mark.root
async def test_a_cache_that_fills_up_on_the_way(registry: FaultyRegistry, small_disk: Path, tmp_path: Path) -> None:
    """The blobs fit one by one, but not together."""
    layers = [[file(f"f{n}", os.urandom(1 << 20))] for n in range(6)]
    async with fastpull.Client(cache=small_disk / "cache") as client:
        with pytest.raises(CacheError, match="no space left on device"):
            await client.pull(publish(registry, *layers), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not fastpull.Cache(small_disk / "cache").verify().corrupt


@pytest.mark.root
async def test_a_read_only_filesystem(registry: FaultyRegistry, settings: Settings, small_disk: Path) -> None:
    await asyncio.to_thread(subprocess.check_call, ["mount", "-o", "remount,ro", small_disk])
    reference = publish(registry, [file("a")])
    async with fastpull.Client(settings) as client:
        with pytest.raises(OutputError, match="read-only file system.*choose another place"):
            await client.pull(reference, small_disk / "out")
    with pytest.raises(CacheError, match="read-only file system"):
        async with fastpull.Client(cache=small_disk / "cache"):
            pass


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that other users can enter, with one of nobody's in it."""
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        where.chmod(0o755)
        (where / "theirs").mkdir()
        os.chown(where / "theirs", 65534, 65534)
        yield where


@pytest.mark.root
async def test_a_plain_user_without_permission_is_told_where(registry: FaultyRegistry, open_folder: Path) -> None:
    reference, theirs = publish(registry, [file("a")]), open_folder / "theirs"
    output = await run("pull", reference, "-o", open_folder / "out", cache=f"{theirs}/cache", as_nobody=True)
    assert (output.code, "permission denied" in output.err) == (31, True), output.err
    cache = await run("pull", reference, "-o", theirs / "out", cache=f"{open_folder}/cache", as_nobody=True)
    assert (cache.code, f"{open_folder}/cache" in cache.err) == (30, True), cache.err


@pytest.mark.root
async def test_a_plain_user_gets_a_tree_of_their_own(registry: FaultyRegistry, open_folder: Path) -> None:
    reference, theirs = (
        publish(registry, [file("secret", b"x", mode=0), file("su", mode=0o4755)]),
        open_folder / "theirs",
    )
    ended = await run("pull", reference, "-o", theirs / "out", cache=f"{theirs}/cache", as_nobody=True)
    assert ended.code == 0, ended.err
    assert "1 setuid bits left out" in ended.err
    states = [os.stat(theirs / "out" / name) for name in ("secret", "su")]
    assert [(oct(state.st_mode & 0o7777), state.st_uid) for state in states] == [("0o400", 65534), ("0o755", 65534)]


@pytest.mark.root
async def test_a_plain_user_can_run_the_demonstration(open_folder: Path) -> None:
    ended = await run("demo", "--size", "4", cache="", as_nobody=True, TMPDIR=f"{open_folder}/theirs")
    assert ended.code == 0, ended.err
    assert "all as they should be" in ended.err
    assert os.listdir(open_folder / "theirs") == []
