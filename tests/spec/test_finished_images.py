"""Finished images: built once, then served from the cache."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fastpull
from fastpull.cache import blob_metadata as seal_module
from fastpull.cache.files import CacheFiles
from fastpull.cache.images import store as image_store
from fastpull.cache.images.pins import Pins
from fastpull.cache.images.store import ImageStore
from fastpull.client import Client
from fastpull.config.settings import Settings
from fastpull.errors import FastpullError
from fastpull.telemetry.events import Event, LayerDone, WaitingForImage, Warned
from tests.support.finished import LAYERS, origin, pull, was_unpacked
from tests.support.layers import file, publish
from tests.support.peers import on_xfs
from tests.support.processes import run
from tests.support.registry import FaultyRegistry, slow


@pytest.fixture
def keeping(settings: Settings) -> Settings:
    return replace(settings, keep_images=True)


@pytest.fixture
def images(settings: Settings) -> ImageStore:
    return ImageStore(CacheFiles(settings.cache))


def damage(path: str) -> None:
    """Damage a file as a disk does: only the bytes change, not the metadata."""
    state = os.stat(path)
    os.chmod(path, 0o600)
    with open(path, "r+b") as file_:
        file_.seek(1000)
        file_.write(b"damage")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


async def test_a_second_pull_serves_the_same_bytes_without_a_build(
    registry: FaultyRegistry, keeping: Settings, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, *LAYERS)
    plain, _ = await pull(reference, tmp_path / "plain.sqsh", replace(settings, cache=str(tmp_path / "other")))
    first, events = await pull(reference, tmp_path / "first.sqsh", keeping)
    assert was_unpacked(events)
    registry.requests.clear()
    second, events = await pull(reference, tmp_path / "second.sqsh", settings)
    assert not was_unpacked(events)
    assert registry.blob_requests() == []
    assert (origin(plain), first.was_finished, second.was_finished) == ("built", False, True)
    assert origin(first) == origin(second)
    assert origin(second) in ("cloned", "copied")
    contents = {(tmp_path / f"{name}.sqsh").read_bytes() for name in ("plain", "first", "second")}
    assert len(contents) == 1
    assert isinstance(plain.output, fastpull.sinks.SquashfsReport)
    assert isinstance(second.output, fastpull.sinks.SquashfsReport)
    assert second.output.facts() == plain.output.facts()
    assert (second.entries, second.unpacked) == (plain.entries, plain.unpacked)


async def test_no_image_is_kept_without_the_setting(
    registry: FaultyRegistry, settings: Settings, images: ImageStore, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        report, _ = await pull(publish(registry, *LAYERS), tmp_path / f"{name}.sqsh", settings)
        assert not report.was_finished
    assert list(images.all()) == []


async def test_writing_to_the_output_leaves_the_cached_image_unchanged(
    registry: FaultyRegistry, keeping: Settings, images: ImageStore, tmp_path: Path
) -> None:
    reference, output = publish(registry, *LAYERS), tmp_path / "image.sqsh"
    await pull(reference, output, keeping)
    [kept] = images.all()
    assert os.stat(kept.path).st_nlink == os.stat(output).st_nlink == 1
    assert stat.S_IMODE(os.stat(kept.path).st_mode) & 0o222 == 0
    assert stat.S_IMODE(output.stat().st_mode) & 0o200, "the output belongs to the user"
    with output.open("r+b") as file_:
        file_.write(b"mine")
    assert [sound for _, _, sound in images.verify()] == [True]


async def test_a_hard_link_is_made_only_with_the_option(
    registry: FaultyRegistry, keeping: Settings, images: ImageStore, tmp_path: Path
) -> None:
    reference, output = publish(registry, *LAYERS), tmp_path / "image.sqsh"
    for _ in range(2):
        report, _ = await pull(reference, output, keeping, hard_link=True, force=True)
        assert origin(report) == "linked"
        assert os.path.samefile(next(images.all()).path, output)
        assert sorted(os.listdir(tmp_path)) == ["cache", "image.sqsh"]
    report, _ = await pull(reference, output, keeping, hard_link=True)
    assert report.was_there, "every hard link shares the marker of the cached file"
    report, _ = await pull(reference, output, keeping, force=True)
    assert not os.path.samefile(next(images.all()).path, output)


@pytest.mark.root
@pytest.mark.peer("mkfs.xfs")
async def test_the_output_is_a_clone_where_files_can_share_blocks(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, *LAYERS)
    with on_xfs(tmp_path) as xfs:
        keeping = replace(settings, cache=str(xfs / "cache"), keep_images=True)
        first, _ = await pull(reference, xfs / "first.sqsh", keeping)
        second, _ = await pull(reference, xfs / "second.sqsh", keeping)
        assert origin(first) == origin(second) == "cloned"
        contents = [(xfs / f"{name}.sqsh").read_bytes() for name in ("first", "second")]
        assert contents[0] == contents[1]
        with (xfs / "second.sqsh").open("r+b") as file_:
            file_.write(b"mine")
        assert fastpull.cache.CacheManager(keeping.cache).verify().is_sound
    other, _ = await pull(reference, tmp_path / "other.sqsh", settings)
    assert contents[0] == (tmp_path / "other.sqsh").read_bytes()
    assert not other.was_finished


async def test_the_output_is_a_copy_where_no_hard_link_can_be_made(
    registry: FaultyRegistry, keeping: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    reference = publish(registry, *LAYERS)
    await pull(reference, tmp_path / "first.sqsh", keeping)
    monkeypatch.setattr("fastpull.sinks.squashfs.image.transfer.fcntl.ioctl", refuse)
    link = os.link

    def link_within(source: Any, target: Any, **options: Any) -> None:
        refuse() if os.path.realpath(os.fsdecode(source)).startswith(keeping.cache) else link(source, target, **options)

    monkeypatch.setattr(os, "link", link_within)
    report, _ = await pull(reference, tmp_path / "second.sqsh", keeping, hard_link=True)
    assert origin(report) == "copied"
    assert (tmp_path / "first.sqsh").read_bytes() == (tmp_path / "second.sqsh").read_bytes()


async def test_a_damaged_image_is_removed_and_built_again(
    registry: FaultyRegistry, keeping: Settings, settings: Settings, images: ImageStore, tmp_path: Path
) -> None:
    """Even with an unchanged modification time, because a copy is hashed."""
    reference = publish(registry, *LAYERS)
    await pull(reference, tmp_path / "good.sqsh", keeping)
    [kept] = images.all()
    for which in (settings, keeping):
        damage(kept.path)
        report, events = await pull(reference, tmp_path / "again.sqsh", which, force=True)
        if origin(report) != "cloned":
            assert not report.was_finished
            assert any(isinstance(event, Warned) and "damaged or gone" in event.message for event in events)
            assert (tmp_path / "again.sqsh").read_bytes() == (tmp_path / "good.sqsh").read_bytes()
        await pull(reference, tmp_path / "again.sqsh", keeping, force=True)


async def test_an_image_not_synced_before_a_reboot_is_verified_before_use(
    registry: FaultyRegistry, keeping: Settings, images: ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = publish(registry, *LAYERS)
    await pull(reference, tmp_path / "good.sqsh", keeping)
    [kept] = images.all()
    assert not kept.metadata.synced
    read: list[int] = []
    fingerprint = image_store._fingerprint

    def counted(fd: int, *rest: Any) -> str:
        read.append(fd)
        return fingerprint(fd, *rest)

    monkeypatch.setattr("fastpull.cache.images.store._fingerprint", counted)
    assert images.find(kept.key)
    assert read == []
    monkeypatch.setattr(seal_module, "boot_id", lambda: "another boot")
    found = images.find(kept.key)
    assert found
    assert found.metadata.synced, "a verified image counts as synced"
    assert images.find(kept.key)
    assert len(read) == 1


async def test_concurrent_requests_of_one_client_build_once(registry: FaultyRegistry, settings: Settings) -> None:
    reference, events = publish(registry, *LAYERS), list[Event]()
    registry.faults.append(slow(1_000_000))  # gives the other tasks time to wait
    async with Client(settings, on_event=events.append) as client:
        found = await asyncio.gather(*(client.ensure_squashfs(reference) for _ in range(8)))
    assert len({image.path for image in found}) == 1
    assert sum(isinstance(event, LayerDone) for event in events) == 2
    assert any(isinstance(event, WaitingForImage) for event in events)


async def test_a_failed_build_leaves_no_file_and_no_pin(
    registry: FaultyRegistry, settings: Settings, images: ImageStore
) -> None:
    broken = publish(registry, [file("../../escape", b"x")])
    holder = fastpull.cache.Holder.here("1", "0")
    async with Client(settings) as client:
        for _ in range(2):
            with pytest.raises(FastpullError):
                await client.ensure_squashfs(broken, holder=holder)
    assert list(images.all()) == []
    assert Pins(CacheFiles(settings.cache)).active() == {}
    assert [path for path in Path(settings.cache, "v1/images").rglob("*") if path.is_file()] == []
    assert os.listdir(f"{settings.cache}/v1/locks") == []


async def test_a_pin_made_during_removal_is_respected_or_waits(
    registry: FaultyRegistry, settings: Settings, images: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removal takes the lock before it reads pins; pinning writes the pin before it checks the lock."""
    reference, holder = publish(registry, *LAYERS), fastpull.cache.Holder.here("1", "0")
    cache = fastpull.cache.CacheManager(settings.cache)
    async with Client(settings) as client:
        kept = await client.ensure_squashfs(reference)
        active = Pins.active
        was_read = asyncio.Event()
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Task[fastpull.FinishedImage]] = []

        def pinned_just_after(pins: Pins, *rest: float) -> Any:
            found = active(pins, *rest)
            if not images.lock(kept.key).exists:
                return found
            loop.call_soon_threadsafe(was_read.set)
            # the pin is written and the lock is checked now
            while not active(pins):
                pass
            return found

        monkeypatch.setattr(Pins, "active", pinned_just_after)

        async def get() -> fastpull.FinishedImage:
            await was_read.wait()
            return await client.ensure_squashfs(reference, holder=holder)

        waiting.append(asyncio.create_task(get()))
        removed = await asyncio.to_thread(cache.collect, max_size=0)
        assert [image.path for image in removed.images] == [kept.path]
        found = await waiting[0]
    assert os.path.exists(found.path), "the request waited and built the image again"


@pytest.mark.root
@pytest.mark.parametrize("shared", [False, True], ids=["own images", "shared images"])
async def test_another_user_s_image_is_used_only_with_shared_images(
    registry: FaultyRegistry, shared_directory: Path, shared: bool
) -> None:
    """No digest proves that a finished image has the content of its name."""
    cache, outputs = shared_directory / "cache", shared_directory / "outputs"
    for place in (cache, outputs):
        place.mkdir()
        place.chmod(0o777)
    reference, environment = publish(registry, *LAYERS), {"FASTPULL_SHARE_IMAGES": str(shared)}
    for name, as_nobody in (("1", True), ("2", False), ("3", True)):
        ended = await run(
            "pull",
            reference,
            "--keep-images",
            "-o",
            outputs / f"{name}.sqsh",
            cache=str(cache),
            as_nobody=as_nobody,
            **environment,
        )
        assert ended.code == 0, ended.err
        assert ("from the finished image in the cache" in ended.err) == (name == "3" or (shared and name == "2"))
    images = ImageStore(CacheFiles(str(cache)))
    assert len({os.stat(image.path).st_uid for image in images.all()}) == (1 if shared else 2)
    assert {image.key.maker for image in images.all()} == ({None} if shared else {0, 65534})


@pytest.mark.root
async def test_an_image_with_my_key_owned_by_another_user_is_removed(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    reference, keeping = publish(registry, *LAYERS), replace(settings, keep_images=True)
    await pull(reference, tmp_path / "mine.sqsh", keeping)
    images = ImageStore(CacheFiles(str(cache)))
    for foreign in ("", ".seal"):
        os.chown(next(images.all()).path + foreign, 65534, -1)
        report, _ = await pull(reference, tmp_path / "again.sqsh", keeping, force=True)
        assert not report.was_finished
        report, _ = await pull(reference, tmp_path / "again.sqsh", keeping, force=True)
        assert report.was_finished


# --- maintenance


async def test_gc_removes_the_least_recently_used_images_and_blobs(
    registry: FaultyRegistry, keeping: Settings, images: ImageStore, tmp_path: Path
) -> None:
    one, two = (publish(registry, [file(name, os.urandom(100_000))], name=f"test/{name}") for name in ("one", "two"))
    for reference in (one, two):
        await pull(reference, tmp_path / "out.sqsh", keeping, force=True)
    cache = fastpull.cache.CacheManager(keeping.cache)
    assert {image.reference: image.finished > 100_000 for image in cache.images()} == {one: True, two: True}
    old = next(image for image in images.all() if image.source == one)
    os.utime(f"{old.path}.seal", (1, 1))
    usage = cache.usage()
    assert (usage.images, usage.image_bytes) == (2, sum(image.size for image in images.all()))
    limit = usage.blob_bytes + usage.image_bytes - 1
    assert [image.path for image in cache.collect(max_size=limit, dry_run=True).images] == [old.path]
    assert os.path.exists(old.path)
    removed = cache.collect(max_size=limit)
    assert ([image.path for image in removed.images], removed.blobs) == ([old.path], [])
    assert [image.source for image in images.all()] == [two]
    assert cache.remove(two).images
    assert list(images.all()) == []


async def test_using_an_image_renews_its_last_use(
    registry: FaultyRegistry, keeping: Settings, images: ImageStore, tmp_path: Path
) -> None:
    reference = publish(registry, *LAYERS)
    await pull(reference, tmp_path / "out.sqsh", keeping)
    [kept] = images.all()
    os.utime(f"{kept.path}.seal", (1, 1))
    fastpull.cache.CacheManager(keeping.cache).verify()
    assert next(images.all()).last_used == 1, "verification does not count as use"
    await pull(reference, tmp_path / "out.sqsh", keeping, force=True)
    assert next(images.all()).last_used > 1


async def test_verify_removes_damaged_images(
    registry: FaultyRegistry, keeping: Settings, images: ImageStore, tmp_path: Path
) -> None:
    await pull(publish(registry, *LAYERS), tmp_path / "out.sqsh", keeping)
    [kept] = images.all()
    assert fastpull.cache.CacheManager(keeping.cache).verify().images == 1
    damage(kept.path)
    for dry_run in (True, False):
        assert fastpull.cache.CacheManager(keeping.cache).verify(dry_run=dry_run).corrupt_images == [kept.path]
        assert os.path.exists(kept.path) == dry_run
    assert fastpull.cache.CacheManager(keeping.cache).verify().is_sound


async def test_gc_removes_files_of_killed_builds(settings: Settings, images: ImageStore) -> None:
    folder_ = Path(settings.cache, "v1/images/sha256")
    orphans = [
        folder_ / ".0a.0b.draft",
        folder_ / "..0a.0b.draft.fastpull-01234567",
        folder_ / "0a.0b.sqsh.seal",
    ]
    for path in orphans:
        path.write_bytes(b"x")
    fastpull.cache.CacheManager(settings.cache).collect()
    assert all(path.exists() for path in orphans), "a build may still use them"
    for path in orphans:
        os.utime(path, (1, 1))
    fastpull.cache.CacheManager(settings.cache).collect()
    assert list(folder_.iterdir()) == []


# --- the command line


async def test_the_command_reports_the_origin_of_an_image(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, *LAYERS)
    first = await run("pull", reference, "-o", tmp_path / "1.sqsh", "--keep-images", cache=settings.cache)
    assert first.code == 0, first.err
    second = await run("pull", reference, "-o", tmp_path / "2.sqsh", "--json", cache=settings.cache)
    report = json.loads(second.out.splitlines()[-1])
    assert (report["was_finished"], report["output"]["origin"]) in [(True, "cloned"), (True, "copied")]
    third = await run("pull", reference, "-o", tmp_path / "3.sqsh", "--hardlink", cache=settings.cache)
    assert "linked from the finished image in the cache" in third.err
    listed = await run("cache", "ls", "--finished", cache=settings.cache)
    assert listed.out.splitlines()[1].split()[:2] == [reference, "linux/amd64"]
    assert "  -  " in listed.out
    refused = await run("pull", reference, "-o", tmp_path / "d/", "--hardlink", cache=settings.cache)
    assert refused.code == 3
