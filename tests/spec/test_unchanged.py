"""Pulling the same output again: nothing is done if, and only if, the output is known to be unchanged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fastpull
from fastpull.config.settings import Settings
from fastpull.errors import OutputError, OutputExists
from fastpull.runtimes.base import Additions, OutputShape
from fastpull.sinks.output import marker as marker_module
from fastpull.sinks.output.marker import MARKER_NAME
from fastpull.telemetry.events import Event, LayerDone, LayerProgress, Unchanged
from tests.support.layers import file, folder, publish
from tests.support.processes import run
from tests.support.registry import FaultyRegistry
from tests.support.trees import look, names

ROOTFS = [folder("etc"), folder("usr"), folder("bin"), file("etc/name", b"x")]
Make = Callable[..., Any]


def directory(path: Path, **options: Any) -> fastpull.Sink:
    return fastpull.Directory(path / "out", **options)


def squashfs(path: Path, **options: Any) -> fastpull.Sink:
    return fastpull.Squashfs(path / "out.sqsh", **options)


def tar(path: Path, **options: Any) -> fastpull.Sink:
    return fastpull.Tar(path / "out.tar", **options)


def packed_tar(path: Path, **options: Any) -> fastpull.Sink:
    return fastpull.Tar(path / "out.tar.zst", compression="zstd", **options)


SINKS = [directory, squashfs, tar, packed_tar]
FILES = [squashfs, tar, packed_tar]


async def pull(
    reference: str, sink: fastpull.Sink, settings: Settings, **options: Any
) -> tuple[fastpull.PullReport, list[Event]]:
    events: list[Event] = []
    async with fastpull.Client(settings, on_event=events.append) as client:
        report = await client.pull(reference, sink, **options)
    return report, events


def was_made(events: list[Event]) -> bool:
    return any(isinstance(event, LayerDone | LayerProgress) for event in events)


def output_of(sink: fastpull.Sink) -> str:
    return os.fspath(sink.path)  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", SINKS)
@pytest.mark.parametrize("sync", [False, True])
async def test_unchanged_output_is_not_made_again(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, make: Make, sync: bool
) -> None:
    settings = replace(settings, sync=sync)
    reference = publish(registry, ROOTFS)
    first, _ = await pull(reference, make(tmp_path), settings)
    path = output_of(make(tmp_path))
    before = os.stat(path)
    again, events = await pull(reference, make(tmp_path), settings, digest_file=tmp_path / "digest")
    assert (first.was_there, again.was_there) == (False, True)
    assert again.image.digest == first.image.digest
    assert again.output.inodes == first.output.inodes
    assert events[-1] == Unchanged(reference, path)
    assert not was_made(events)
    after = os.stat(path)
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    assert (tmp_path / "digest").read_text() == str(first.image.digest)
    assert sorted(os.listdir(tmp_path)) == ["cache", "digest", os.path.basename(path)]
    forced, events = await pull(reference, make(tmp_path, force=True), settings)
    assert not forced.was_there
    assert was_made(events)
    assert os.stat(path).st_ino != before.st_ino
    again, _ = await pull(reference, make(tmp_path), settings)
    assert again.was_there


@pytest.mark.parametrize("make", SINKS)
async def test_output_of_other_image_is_refused(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, make: Make
) -> None:
    reference = publish(registry, ROOTFS)
    first, _ = await pull(reference, make(tmp_path), settings)
    publish(registry, [*ROOTFS, file("new")])  # the tag names another image now
    with pytest.raises(OutputExists, match=rf"another image \({first.image.digest}\) is there.*--force"):
        await pull(reference, make(tmp_path), settings)
    moved, _ = await pull(reference, make(tmp_path, force=True), settings)
    assert moved.image.digest != first.image.digest
    again, _ = await pull(reference, make(tmp_path), settings)
    assert (again.was_there, again.image.digest) == (True, moved.image.digest)


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (directory, {}, {"runtimes": ["plain"]}),
        (squashfs, {}, {"compression": "gzip"}),
        (squashfs, {}, {"fragments": False}),
        (squashfs, {}, {"mtime": 0}),
        (squashfs, {}, {"runtimes": ["enroot"]}),
        (squashfs, {"runtimes": ["enroot"]}, {"runtimes": ["enroot", "charliecloud"]}),
        (tar, {}, {"mtime": 5}),
        (packed_tar, {}, {"runtimes": ["plain"]}),
        pytest.param(directory, {"owner": "keep"}, {"owner": "me"}, marks=pytest.mark.root),
    ],
)
async def test_output_with_other_options_is_refused(
    registry: FaultyRegistry,
    settings: Settings,
    tmp_path: Path,
    make: Make,
    one: dict[str, Any],
    other: dict[str, Any],
) -> None:
    reference = publish(registry, ROOTFS)

    async def made(options: dict[str, Any], **more: Any) -> fastpull.PullReport:
        given = {**options, **more}
        runtimes = given.pop("runtimes", [])
        return (await pull(reference, make(tmp_path, **given), settings, runtimes=runtimes))[0]

    await made(one)
    assert (await made(one)).was_there
    with pytest.raises(OutputExists, match="this image, made in another way, is there"):
        await made(other)
    assert not (await made(other, force=True)).was_there
    assert (await made(other)).was_there
    with pytest.raises(OutputExists):
        await made(one)


async def test_directory_and_file_of_same_image_differ(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, ROOTFS)
    await pull(reference, fastpull.Directory(tmp_path / "out"), settings)
    with pytest.raises(OutputError, match="a directory exists") as caught:
        await pull(reference, fastpull.Squashfs(tmp_path / "out"), settings)
    assert "--force" not in str(caught.value), "it would not help"
    await pull(reference, fastpull.Squashfs(tmp_path / "file"), settings)
    with pytest.raises(OutputError, match="does not replace a file") as caught:
        await pull(reference, fastpull.Directory(tmp_path / "file"), settings)
    assert "--force" not in str(caught.value)


@pytest.mark.parametrize("make", FILES)
async def test_modified_file_is_not_unchanged_output(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, make: Make
) -> None:
    reference = publish(registry, ROOTFS)
    await pull(reference, make(tmp_path), settings)
    path = Path(output_of(make(tmp_path)))
    path.write_bytes(path.read_bytes()[:-7] + b"changed")
    with pytest.raises(OutputExists, match="file exists"):
        await pull(reference, make(tmp_path), settings)


async def test_file_with_other_time_is_compared_by_fingerprint(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference, keeping = publish(registry, ROOTFS), replace(settings, keep_images=True)
    for make, which, is_known in ((tar, settings, False), (packed_tar, settings, True), (squashfs, keeping, True)):
        await pull(reference, make(tmp_path), which)
        os.utime(output_of(make(tmp_path)), (1, 1))
        if is_known:
            report, _ = await pull(reference, make(tmp_path), which)
            assert report.was_there
        else:
            with pytest.raises(OutputExists):
                await pull(reference, make(tmp_path), which)


@pytest.mark.parametrize("make", SINKS)
async def test_unsynced_output_of_earlier_boot_is_not_trusted(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = publish(registry, ROOTFS)
    await pull(reference, make(tmp_path), settings)
    with monkeypatch.context() as patched:
        patched.setattr(marker_module, "boot_id", lambda: "the next boot")
        with pytest.raises(OutputExists):
            await pull(reference, make(tmp_path), settings)
    await pull(reference, make(tmp_path, force=True), replace(settings, sync=True))
    monkeypatch.setattr(marker_module, "boot_id", lambda: "the next boot")
    report, _ = await pull(reference, make(tmp_path), settings)
    assert report.was_there


@pytest.mark.root
@pytest.mark.parametrize("make", SINKS)
async def test_output_of_other_user_is_not_trusted(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, make: Make
) -> None:
    reference = publish(registry, ROOTFS)
    await pull(reference, make(tmp_path), settings)
    path = output_of(make(tmp_path))
    os.chown(path, 12345, 12345)
    with pytest.raises(OutputExists):
        await pull(reference, make(tmp_path), settings)
    os.chown(path, 0, 0)
    os.chmod(path, os.stat(path).st_mode | 0o002)
    with pytest.raises(OutputExists):
        await pull(reference, make(tmp_path), settings)
    os.chmod(path, os.stat(path).st_mode & ~0o002)
    assert (await pull(reference, make(tmp_path), settings))[0].was_there


@pytest.mark.parametrize("make", SINKS)
async def test_marker_of_copy_is_invalid(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, make: Make
) -> None:
    """A copy may be older than its marker, or come from an image."""
    reference = publish(registry, ROOTFS)
    await pull(reference, make(tmp_path), settings)
    path = Path(output_of(make(tmp_path)))
    path.rename(tmp_path / "aside")
    (shutil.copytree if make is directory else shutil.copy2)(tmp_path / "aside", path)
    assert os.getxattr(path, MARKER_NAME) == os.getxattr(tmp_path / "aside", MARKER_NAME)
    with pytest.raises(OutputExists):
        await pull(reference, make(tmp_path), settings)


def forged(digest: str) -> bytes:
    return json.dumps(
        {
            "boot": "",
            "fingerprint": "",
            "inode": 1,
            "inodes": 1,
            "mtime_ns": 0,
            "size": 0,
            "synced": True,
            "tree": 1,
            "version": 1,
            "identity": {"image": digest, "platform": "linux/amd64", "recipe": {}},
        }
    ).encode()


async def test_image_cannot_bring_its_own_marker(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    attribute = ((b"user.fastpull.image", forged("sha256:" + "f" * 64)), (b"user.kept", b"1"))
    reference = publish(
        registry, [folder("", xattrs=attribute), file("f", xattrs=attribute), folder("d", xattrs=attribute)]
    )
    report, _ = await pull(reference, directory(tmp_path), settings)
    value = json.loads(os.getxattr(tmp_path / "out", MARKER_NAME))
    assert value["identity"]["image"] == str(report.image.digest)
    assert os.getxattr(tmp_path / "out", "user.kept") == b"1"
    for name in ("f", "d"):
        assert os.listxattr(tmp_path / "out" / name) == ["user.kept"]
    assert report.output.left_out["xattrs"] == 3
    assert (await pull(reference, directory(tmp_path), settings))[0].was_there


@pytest.mark.root
async def test_read_only_root_of_unprivileged_user_has_marker(
    registry: FaultyRegistry, settings: Settings, shared_directory: Path
) -> None:
    shared_directory.chmod(0o777)
    reference = publish(registry, [folder("", 0o555), *ROOTFS])
    arguments = ("pull", reference, "-o", f"{shared_directory}/out/")
    for expected in (False, True):
        ended = await run(*arguments, cache=f"{shared_directory}/cache", as_nobody=True)
        assert ended.code == 0, ended.err
        assert ("already there" in ended.err) == expected


async def test_output_has_no_marker_without_xattr_support(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "setxattr", refuse)
    reference = publish(registry, ROOTFS)
    for make in SINKS:
        await pull(reference, make(tmp_path), settings)
        with pytest.raises(OutputExists):
            await pull(reference, make(tmp_path), settings)
        await pull(reference, make(tmp_path, force=True), settings)


async def test_bundles_and_sidecars_are_recognised_as_unchanged(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, ROOTFS)
    outputs = (("bundle", tmp_path / "bundle", "config.json"), ("shifter", tmp_path / "id.squashfs", "../id.meta"))
    for runtime, output, beside in outputs:
        sink = f"{output}/" if runtime == "bundle" else str(output)
        for expected in (False, True):
            report, _ = await pull(reference, sink, settings, runtimes=[runtime])  # type: ignore[arg-type]
            assert report.was_there == expected
        assert (output / beside if runtime == "bundle" else tmp_path / "id.meta").exists()
    assert MARKER_NAME not in os.listxattr(tmp_path / "bundle/rootfs")
    (tmp_path / "id.meta").write_text("changed")
    with pytest.raises(OutputExists):
        await pull(reference, str(tmp_path / "id.squashfs"), settings, runtimes=["shifter"])  # type: ignore[arg-type]


class Own:
    """A profile of the caller."""

    name, output_shape, sidecar_names, has_one_owner = "own", OutputShape.ROOTFS, (), False

    def required_files(self, image: fastpull.Image) -> tuple[()]:
        return ()

    def additions(self, image: fastpull.Image, files: object) -> Additions:
        return Additions(())


async def test_output_of_own_profile_is_made_again(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, [file("a")])
    await pull(reference, directory(tmp_path), settings, runtimes=[Own()])
    with pytest.raises(OutputExists):
        await pull(reference, directory(tmp_path), settings, runtimes=[Own()])
    with pytest.raises(OutputExists):
        await pull(reference, directory(tmp_path), settings)
    await pull(
        reference, directory(tmp_path, force=True), settings, runtimes=[Own()]
    )  # the directory still has a marker of fastpull


async def test_tree_differs_from_image_only_by_marker(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    await pull(publish(registry, ROOTFS), directory(tmp_path), settings)
    assert os.listxattr(tmp_path / "out") == [MARKER_NAME]
    assert look(tmp_path / "out")[b"."].xattrs == ()
    assert names(tmp_path / "out") == {"etc", "usr", "bin", "etc/name"}


async def test_command_reports_unchanged_output(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    reference = publish(registry, ROOTFS)
    arguments = ("pull", reference, "-o", tmp_path / "out.sqsh", "--digest-file", tmp_path / "digest")
    first = await run(*arguments, cache=settings.cache)
    again = await run(*arguments, cache=settings.cache)
    assert (first.code, again.code) == (0, 0)
    assert first.out == again.out
    assert f"already there: {tmp_path}/out.sqsh is {reference} ({first.out.strip()})" in again.err
    assert (tmp_path / "digest").read_text() == first.out.strip()
    told = await run(*arguments, "--json", cache=settings.cache)
    events = [json.loads(line) for line in told.out.splitlines()]
    assert [event["event"] for event in events] == ["resolved", "unchanged", "result"]
    assert events[1] == {"event": "unchanged", "source": reference, "path": f"{tmp_path}/out.sqsh"}
    assert events[2]["was_there"] is True
    quiet = await run(*arguments, "-q", cache=settings.cache)
    assert (quiet.code, quiet.out, quiet.err) == (0, first.out, "")
    enroot = await run("enroot", "import", "-o", tmp_path / "out.sqsh", f"docker://{reference}", cache=settings.cache)
    assert (enroot.code, "File already exists" in enroot.err) == (31, True)


async def test_unchanged_output_needs_no_registry_with_cached_tag(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, ROOTFS)
    await pull(reference, directory(tmp_path), settings)
    asked = len(registry.requests)
    report, _ = await pull(reference, directory(tmp_path), replace(settings, pull="missing"))
    assert report.was_there
    assert len(registry.requests) == asked
