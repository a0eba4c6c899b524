"""Recipes: the options, versions and runtimes that make the key of a finished image."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fastpull
from fastpull.cache.files import CacheFiles
from fastpull.cache.images.pins import Pins
from fastpull.cache.images.store import ImageStore
from fastpull.client import Client
from fastpull.config.settings import Settings
from fastpull.errors import InvalidSetting
from fastpull.layers.archive import archive
from fastpull.layers.merge import merge
from fastpull.oci.digest import Digest
from fastpull.runtimes.choose import profiles_for
from fastpull.runtimes.compose import compose
from fastpull.runtimes.enroot import Enroot
from fastpull.sinks.squashfs.blocks.compressors import Compressor
from fastpull.sinks.squashfs.recipe import WRITER_VERSION
from fastpull.telemetry.events import Event, Warned
from tests.runtimes.configs import image_of
from tests.support.finished import LAYERS, pull
from tests.support.layers import device, file, folder, hardlink, publish, symlink, whiteout
from tests.support.processes import run
from tests.support.registry import FaultyRegistry


@pytest.fixture
def keeping(settings: Settings) -> Settings:
    return replace(settings, keep_images=True)


@pytest.fixture
def images(settings: Settings) -> ImageStore:
    return ImageStore(CacheFiles(settings.cache))


# --- keys


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd:2"},
        {"compression": "gzip"},
        {"compression": "none"},
        {"block_size": 64 << 10},
        {"fragments": False},
        {"mtime": 0},
        {"time": 1},
    ],
    ids=str,
)
async def test_each_option_is_part_of_the_key(
    registry: FaultyRegistry, keeping: Settings, images: ImageStore, tmp_path: Path, options: dict[str, Any]
) -> None:
    reference = publish(registry, *LAYERS)
    await pull(reference, tmp_path / "plain.sqsh", keeping)
    report, _ = await pull(reference, tmp_path / "other.sqsh", keeping, **options)
    assert not report.was_finished
    assert len(list(images.all())) == 2
    again, _ = await pull(reference, tmp_path / "again.sqsh", keeping, **options)
    assert again.was_finished
    assert (tmp_path / "again.sqsh").read_bytes() == (tmp_path / "other.sqsh").read_bytes()
    assert (tmp_path / "plain.sqsh").read_bytes() != (tmp_path / "other.sqsh").read_bytes()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({}, {"compression": "zstd:1", "block_size": 131072}, True),
        ({}, {"compression": "zstd"}, True),
        ({"compression": "gzip"}, {"compression": "gzip:9"}, True),
        ({"time": None}, {"time": 0}, False),
        ({"mtime": None}, {"mtime": 0}, False),
    ],
)
async def test_equivalent_options_have_the_same_key(
    registry: FaultyRegistry, settings: Settings, one: dict[str, Any], other: dict[str, Any], same: bool
) -> None:
    async with Client(settings) as client:
        image = await client.resolve(publish(registry, *LAYERS))
        names = {client._session.image_key(image, fastpull.sinks.Recipe.of(**options)).name for options in (one, other)}
    assert (len(names) == 1) == same


async def test_source_date_epoch_codecs_writer_and_runtimes_are_part_of_the_key(
    registry: FaultyRegistry, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Client(settings) as client:
        image, session = await client.resolve(publish(registry, *LAYERS)), client._session
    names = [session.image_key(image, fastpull.sinks.Recipe.of()).name]
    names.append(session.image_key(image, replace(fastpull.sinks.Recipe.of(), runtimes=("enroot",))).name)
    with monkeypatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", "77")
        names.append(session.image_key(image, fastpull.sinks.Recipe.of()).name)
    with monkeypatch.context() as patch:
        patch.setattr("fastpull.sinks.squashfs.recipe.WRITER_VERSION", 999)
        names.append(session.image_key(image, fastpull.sinks.Recipe.of()).name)
    with monkeypatch.context() as patch:
        patch.setattr("fastpull.sinks.squashfs.blocks.compressors.Zstd.versions", lambda _: {"libzstd": "0"})
        names.append(session.image_key(image, fastpull.sinks.Recipe.of()).name)
    assert len(set(names)) == len(names)


class PlainCompressor(Compressor):
    """Compresses nothing, so that the bytes do not depend on a codec."""

    name = "plain"
    id = 1

    def compress_metadata(self, data: bytes | bytearray | memoryview) -> bytes:
        return bytes(data)

    def versions(self) -> dict[str, str]:
        return {}


WRITTEN = {2: "0867ddce38260daf95c0abdbda593de33f6355f0dd29589d64fb468ce98857ed"}
"""The digest of the output for one image, by writer version."""


async def test_the_writer_version_changes_with_the_bytes(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    """Otherwise this version would serve finished images of an older one."""
    layers = (
        [
            folder("d", uid=7),
            file("d/a", bytes(range(256)) * 1000, mtime=9),
            file("e", b"e" * 10, xattrs=((b"user.x", b"y"),)),
        ],
        [
            hardlink("d/h", "e"),
            symlink("l", "d"),
            file("d/b", b"b" * 10, mode=0o4755),
            device("c", 1, 3),
            whiteout("d/a"),
        ],
        [file("d/a", bytes(300_000) + b"end")],
    )
    recipe = fastpull.sinks.Recipe(PlainCompressor(), 64 << 10, fragments=True, mtime=None, time=None)
    output = tmp_path / "image.sqsh"
    async with Client(settings) as client:
        await client.pull(publish(registry, *layers), fastpull.Squashfs(output, recipe=recipe))
    assert WRITTEN.get(WRITER_VERSION) == Digest.of(output.read_bytes()).encoded, (
        "the bytes have changed: increment WRITER_VERSION"
    )


ADDED = {2: "807985e627e86c78ba6abc1afd3265f30568a127657181aa7ee77a6ae53ddb06"}
"""The digest of the files that profiles add to an image without files, by writer version."""


def test_the_writer_version_changes_with_the_files_of_profiles() -> None:
    image = image_of(Entrypoint=["/bin/app"], Env=["A=b"], WorkingDir="/srv", Volumes={"/data": {}}, Labels={"a": "b"})
    added = Digest.of(b"").hasher()
    for profile in profiles_for(["charliecloud", "enroot", "plain"]):
        added.update(archive(compose(merge([]), [(profile, profile.additions(image, {}))], 5, "image")))
    assert ADDED.get(WRITER_VERSION) == added.hexdigest(), "the bytes have changed: increment WRITER_VERSION"


# --- runtimes


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "used if present"])
async def test_images_for_different_runtimes_have_different_keys(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, keep: bool
) -> None:
    reference = publish(registry, *LAYERS, config={"Env": ["A=b"]})
    kinds: list[tuple[str, ...]] = [(), ("enroot",), ("charliecloud",), ("charliecloud", "enroot"), ("plain",)]
    async with Client(replace(settings, cache=str(tmp_path / "other"))) as client:
        for number, runtimes in enumerate(kinds):
            await client.pull(reference, tmp_path / f"{number}.sqsh", runtimes=runtimes)
    async with Client(replace(settings, keep_images=True)) as client:
        for number, runtimes in enumerate(kinds):
            await client.pull(reference, tmp_path / f"{number}-kept.sqsh", runtimes=runtimes)
    async with Client(replace(settings, keep_images=keep)) as client:
        for number, runtimes in enumerate(kinds):
            report = await client.pull(reference, tmp_path / f"{number}-again.sqsh", runtimes=runtimes[::-1])
            assert report.was_finished
            found = {(tmp_path / f"{number}{name}.sqsh").read_bytes() for name in ("", "-kept", "-again")}
            assert len(found) == 1
    assert len({(tmp_path / f"{number}.sqsh").read_bytes() for number in range(4)}) == 4


async def test_enroot_images_of_different_references_have_different_keys(
    registry: FaultyRegistry, keeping: Settings, tmp_path: Path
) -> None:
    """Because ``/etc/rc`` contains the reference."""
    reference = publish(registry, *LAYERS)
    recipe = fastpull.sinks.Recipe.of(runtimes=("enroot",))
    async with Client(keeping) as client:
        image = await client.resolve(reference)
        by_tag, again, by_digest = [
            await client.ensure_squashfs(name, recipe)
            for name in (reference, reference, f"{reference.rpartition(':')[0]}@{image.digest}")
        ]
    assert by_tag.path == again.path != by_digest.path


async def test_an_image_for_a_custom_profile_is_not_kept(
    registry: FaultyRegistry, keeping: Settings, images: ImageStore, tmp_path: Path
) -> None:
    reference = publish(registry, *LAYERS)
    async with Client(keeping) as client:
        report = await client.pull(reference, tmp_path / "image.sqsh", runtimes=[Enroot()])
    assert not report.was_finished
    assert list(images.all()) == []


async def test_warnings_of_a_runtime_are_repeated_for_a_cached_image(
    registry: FaultyRegistry, keeping: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, *LAYERS, config={"Env": ["A=b\nc"]})
    for number in range(2):
        events: list[Event] = []
        async with Client(keeping, on_event=events.append) as client:
            report = await client.pull(reference, tmp_path / f"{number}.sqsh", runtimes=["enroot"])
        assert report.was_finished == bool(number)
        assert len(report.warnings) == 1
        assert [event.message for event in events if isinstance(event, Warned)] == list(report.warnings)


async def test_the_runtimes_of_a_sink_s_recipe_are_used(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, *LAYERS)
    async with Client(settings) as client:
        await client.pull(reference, tmp_path / "1.sqsh", runtimes=["enroot"])
        sink = fastpull.Squashfs(tmp_path / "2.sqsh", recipe=fastpull.sinks.Recipe.of(runtimes=("enroot",)))
        await client.pull(reference, sink)
    assert (tmp_path / "1.sqsh").read_bytes() == (tmp_path / "2.sqsh").read_bytes()


@pytest.mark.parametrize("runtime", ["bundle", "shifter", "none"])
async def test_a_runtime_that_is_not_a_single_file_is_refused(
    registry: FaultyRegistry, settings: Settings, images: ImageStore, runtime: str
) -> None:
    reference, holder = publish(registry, *LAYERS), fastpull.cache.Holder.here("7", "0")
    async with Client(settings) as client:
        with pytest.raises(InvalidSetting, match=runtime):
            await client.ensure_squashfs(reference, fastpull.sinks.Recipe.of(runtimes=(runtime,)), holder=holder)
    assert list(images.all()) == []
    assert Pins(CacheFiles(settings.cache)).active() == {}


async def test_settings_determine_the_squashfs_format(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, *LAYERS)
    for given, expected in (((), "xz"), (("--compression", "gzip:3"), "gzip:3")):
        ended = await run(
            "pull",
            reference,
            "-o",
            tmp_path / "image.sqsh",
            "--force",
            "--json",
            *given,
            cache=settings.cache,
            FASTPULL_COMPRESSION="xz",
            FASTPULL_BLOCK_SIZE="16K",
        )
        assert json.loads(ended.out.splitlines()[-1])["output"]["compression"] == expected
        assert (tmp_path / "image.sqsh").read_bytes()[12:16] == (16 << 10).to_bytes(4, "little")
