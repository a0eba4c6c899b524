"""Pulls that are killed, interrupted, or concurrent."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tarfile
import time
from pathlib import Path

import pytest

import fastpull
from fastpull.cache.store import Store
from fastpull.config.settings import Settings
from fastpull.telemetry.events import Event, Waiting
from tests.support.layers import file, publish, stored
from tests.support.processes import end, kill, run, start
from tests.support.registry import FaultyRegistry, slow, status
from tests.support.trees import names

CONTENTS = [os.urandom(size << 20) for size in (12, 6, 2)]
SIZE = sum(map(len, CONTENTS))
LOST = 10 << 20  # at most: a batch and a receive buffer for each connection


def image(registry: FaultyRegistry, rate: int | None = 4 << 20) -> str:
    """Three layers that arrive slowly."""
    registry.faults = [slow(rate)] if rate else []
    return publish(registry, *[stored([file(f"f{n}", content)], bytes) for n, content in enumerate(CONTENTS)])


def check(out: Path) -> None:
    assert [(out / f"f{n}").read_bytes() == content for n, content in enumerate(CONTENTS)] == [True] * 3


async def until(registry: FaultyRegistry, sent: int) -> None:
    async with asyncio.timeout(30):
        while sum(registry.sent.values()) < sent:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
async def test_a_killed_pull_leaves_nothing_and_the_next_fetches_only_missing_ranges(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, share: float
) -> None:
    reference = image(registry)
    process = await start("pull", reference, "-o", tmp_path / "out", cache=settings.cache)
    await until(registry, int(SIZE * share))
    await kill(process)
    assert not (tmp_path / "out").exists()
    before = sum(registry.sent.values())
    registry.faults.clear()
    ended = await run("pull", reference, "-o", tmp_path / "out", cache=settings.cache)
    assert ended.code == 0, ended.err
    check(tmp_path / "out")
    assert sum(registry.sent.values()) - before <= SIZE - before + LOST
    assert sorted(os.listdir(tmp_path)) == ["cache", "out"], "what the killed one had staged is gone"
    assert fastpull.cache.CacheManager(settings.cache).usage().partial == 0


async def test_a_killed_tar_leaves_nothing_under_its_name(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference, out = image(registry), tmp_path / "image.tar"
    process = await start("pull", reference, "-o", out, cache=settings.cache)
    await until(registry, SIZE // 2)
    await kill(process)
    assert not out.exists()
    registry.faults.clear()
    ended = await run("pull", reference, "-o", out, cache=settings.cache)
    assert ended.code == 0, ended.err
    assert sorted(os.listdir(tmp_path)) == ["cache", "image.tar"], "what the killed one had staged is gone"
    with tarfile.open(out) as opened:
        found = [opened.extractfile(f"f{n}").read() for n in range(len(CONTENTS))]  # type: ignore[union-attr]
    assert found == CONTENTS


async def test_an_unread_standard_output_does_not_delay_cancellation(
    registry: FaultyRegistry, settings: Settings
) -> None:
    reader, writer = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fastpull", "pull", image(registry, None), "-o", "-", stdout=writer,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "FASTPULL_CACHE": settings.cache},
    )  # fmt: skip
    os.close(writer)
    await asyncio.to_thread(os.read, reader, 1000)  # the commit has begun
    ended = await kill(process, signal.SIGINT)
    os.close(reader)
    assert ended.code == 130


async def test_a_pull_succeeds_after_kills_at_random_times(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    seed = int(os.environ.get("FASTPULL_TEST_SEED", "1"))
    choose = random.Random(seed)
    reference = image(registry, 40 << 20)
    for _ in range(6):
        process = await start("pull", reference, "-o", tmp_path / "out", cache=settings.cache)
        await asyncio.sleep(choose.uniform(0.15, 0.9))
        if process.returncode is None:
            await kill(process)
        if (tmp_path / "out").exists():
            break
    else:
        ended = await run("pull", reference, "-o", tmp_path / "out", cache=settings.cache)
        assert ended.code == 0, f"seed {seed}: {ended.err}"
    check(tmp_path / "out")
    assert not fastpull.cache.CacheManager(settings.cache).verify().corrupt


@pytest.mark.parametrize("name", ["out", "image.sqsh", "image.tar"])
async def test_a_collection_removes_the_stagings_of_killed_pulls_and_no_others(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, name: str
) -> None:
    reference = image(registry)
    for folder in ("dead", "alive"):
        (tmp_path / folder).mkdir()
    killed = await start("pull", reference, "-o", tmp_path / "dead" / name, cache=settings.cache)
    await until(registry, SIZE // 3)
    await kill(killed)
    alike = tmp_path / "dead" / f".{name}.fastpull-notours"
    alike.mkdir()
    running = await start("pull", reference, "-o", tmp_path / "alive" / name, cache=settings.cache)
    await until(registry, SIZE // 2)
    staged = [sorted(os.listdir(tmp_path / folder)) for folder in ("dead", "alive")]
    assert list(map(len, staged)) == [2, 1]
    removed = fastpull.cache.CacheManager(settings.cache).collect()
    assert len(removed.stagings) == 1
    assert os.listdir(tmp_path / "dead") == [alike.name]
    assert os.listdir(tmp_path / "alive") == staged[1]
    registry.faults.clear()
    assert (await end(running)).code == 0
    assert os.listdir(tmp_path / "alive") == [name]
    assert not fastpull.cache.CacheManager(settings.cache).collect().stagings
    assert os.listdir(Path(settings.cache, "v1/stagings")) == []


async def test_a_collection_follows_no_link_to_a_staging(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    killed = await start("pull", image(registry), "-o", tmp_path / "folder/out", cache=settings.cache)
    await until(registry, SIZE // 3)
    await kill(killed)
    (tmp_path / "folder").rename(tmp_path / "elsewhere")
    (tmp_path / "folder").symlink_to("elsewhere")
    assert not fastpull.cache.CacheManager(settings.cache).collect().stagings
    assert len(os.listdir(tmp_path / "elsewhere")) == 1


async def test_a_pull_that_ignores_hangups_continues(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference, ignoring = image(registry), ("sh", "-c", "trap '' HUP; exec \"$@\"", "sh")
    process = await start("pull", reference, "-o", tmp_path / "out", cache=settings.cache, under=ignoring)
    await until(registry, SIZE // 2)
    process.send_signal(signal.SIGHUP)
    registry.faults.clear()
    assert (await end(process)).code == 0
    check(tmp_path / "out")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_an_interrupted_pull_cleans_up_within_moments(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, number: int
) -> None:
    reference = image(registry)
    process = await start("pull", reference, "-o", tmp_path / "out", cache=settings.cache)
    await until(registry, SIZE // 2)
    began = time.monotonic()
    ended = await kill(process, number)
    assert time.monotonic() - began < 10, "and not the time that the rest would have taken"
    assert ended.code == 130
    assert "interrupted" in ended.err
    assert "Traceback" not in ended.err
    assert os.listdir(tmp_path) == ["cache"]
    before = sum(registry.sent.values())
    registry.faults.clear()
    assert (await run("pull", reference, "-o", tmp_path / "out", cache=settings.cache)).code == 0
    check(tmp_path / "out")
    assert sum(registry.sent.values()) - before <= SIZE - before + LOST


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
async def test_an_interrupted_squashfs_pull_keeps_the_old_image_and_the_next_gives_the_same_bytes(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, number: int
) -> None:
    reference, output = image(registry), tmp_path / "image.sqsh"
    output.write_text("old")
    process = await start("pull", reference, "-o", output, "--force", cache=settings.cache)
    await until(registry, SIZE // 2)
    await kill(process, number)
    assert output.read_text() == "old"
    left = [name for name in os.listdir(tmp_path) if "fastpull-" in name]
    assert len(left) == (1 if number == signal.SIGKILL else 0)
    registry.faults.clear()
    assert (await run("pull", reference, "-o", output, "--force", cache=settings.cache)).code == 0
    assert sorted(os.listdir(tmp_path)) == ["cache", "image.sqsh"]
    assert (
        await run("pull", reference, "-o", tmp_path / "cold", "--format", "squashfs", cache=f"{tmp_path}/c")
    ).code == 0
    assert output.read_bytes() == (tmp_path / "cold").read_bytes()


async def test_an_interrupted_replacement_keeps_the_old_output(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old").write_text("old")
    arguments = ("-o", f"{tmp_path}/out/", "--force", "--replace-foreign")
    process = await start("pull", image(registry), *arguments, cache=settings.cache)
    await until(registry, SIZE // 2)
    await kill(process, signal.SIGINT)
    assert names(tmp_path / "out") == {"old"}


async def test_a_cancelled_call_ends_soon_and_can_be_repeated(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = image(registry)
    async with fastpull.Client(settings) as client:
        task = asyncio.create_task(client.pull(reference, tmp_path / "out"))
        await until(registry, SIZE // 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert os.listdir(tmp_path) == ["cache"]
        registry.faults.clear()
        await client.pull(reference, tmp_path / "out")
    check(tmp_path / "out")


async def test_the_failure_of_one_layer_ends_the_others_soon(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = image(registry, 1 << 20)
    small = fastpull.Digest.of(stored([file("f2", CONTENTS[2])], bytes).blob)

    async def refuse(running: FaultyRegistry, request: object, digest: str) -> object:
        return await status(404)(running, request, digest) if digest == str(small) else None  # type: ignore[arg-type]

    registry.faults.insert(0, refuse)  # type: ignore[arg-type]
    began = time.monotonic()
    async with fastpull.Client(settings) as client:
        with pytest.raises(fastpull.errors.NotFound):
            await client.pull(reference, tmp_path / "out")
    assert time.monotonic() - began < 5
    assert os.listdir(tmp_path) == ["cache"]


# --- concurrent pulls


async def test_concurrent_processes_fetch_a_blob_once(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = image(registry, 20 << 20)
    processes = [await start("pull", reference, "-o", tmp_path / f"out{n}", cache=settings.cache) for n in range(5)]
    for number, process in enumerate(processes):
        ended = await end(process)
        assert ended.code == 0, ended.err
        check(tmp_path / f"out{number}")
    assert sum(registry.sent.values()) <= 1.02 * SIZE + 100_000


async def test_a_waiting_process_takes_over_after_the_death_of_the_leader(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = image(registry)
    leader = await start("pull", reference, "-o", tmp_path / "leader", cache=settings.cache)
    await until(registry, SIZE // 3)
    events: list[Event] = []
    async with fastpull.Client(settings, on_event=events.append) as client:
        waiting = asyncio.create_task(client.pull(reference, tmp_path / "out"))
        async with asyncio.timeout(10):
            while not any(isinstance(event, Waiting) for event in events):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        before = sum(registry.sent.values())
        registry.faults.clear()
        await kill(leader)
        async with asyncio.timeout(20):
            await waiting
    check(tmp_path / "out")
    assert sum(registry.sent.values()) - before <= SIZE - before + LOST
    assert not (tmp_path / "leader").exists()


async def test_gc_during_a_pull_does_no_harm(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    reference = image(registry, 20 << 20)
    stop = asyncio.Event()
    Store(settings.cache)

    async def collect() -> None:
        while not stop.is_set():
            await asyncio.to_thread(
                fastpull.cache.CacheManager(settings.cache).collect, max_size=0, max_age_seconds=0.01
            )
            await asyncio.sleep(0.01)

    collecting = asyncio.create_task(collect())
    async with fastpull.Client(settings) as client:
        for number in range(3):
            await client.pull(reference, tmp_path / f"out{number}")
            check(tmp_path / f"out{number}")
    stop.set()
    await collecting
