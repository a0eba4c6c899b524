"""Limits: each error names layer, entry and setting, comes soon, and leaves nothing behind."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fastpull
from fastpull.config.settings import Settings
from fastpull.errors import FastpullError, InvalidSetting, LimitExceeded
from fastpull.layers.archive import END, archive, header_of
from fastpull.layers.quota import LayerQuota, Quota
from fastpull.native import EntryTable
from fastpull.native.layer_scanner import LayerScanner
from tests.support.headers import block, pax
from tests.support.layers import file, hardlink, publish, stored, with_window
from tests.support.processes import run
from tests.support.registry import FaultyRegistry

GIB = 1 << 30


async def refused(registry: FaultyRegistry, settings: Settings, tmp_path: Path, *layers: Any, **limits: int) -> str:
    """Pull layers into each kind of output, and return their common refusal.

    With several layers, the layer that crosses the limit depends on their order of arrival.
    """
    reference = publish(registry, *layers)
    messages = set()
    async with fastpull.Client(replace(settings, limits=fastpull.config.Limits(**limits))) as client:
        for name in ("out/", "out.sqsh", "out.tar"):
            with pytest.raises(LimitExceeded) as caught:
                await client.pull(reference, str(tmp_path / name))
            assert caught.value.exit_code == 25
            assert reference in caught.value.subject, "the layer is named"
            assert caught.value.path.startswith(b"f") or len(layers) == 1, "the entry is named"
            messages.add(str(replace(caught.value, subject="", path=b"") if len(layers) > 1 else caught.value))
            assert [left for left in os.listdir(tmp_path) if "out" in left] == []
    (message,) = messages
    return message


async def test_layer_size_is_limited(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    members = [file("small"), file("large", b"x" * 2_000_000)]
    message = await refused(registry, settings, tmp_path, members, max_layer_size=1_000_000)
    assert "'large'" in message
    assert "--max-layer-size or FASTPULL_MAX_LAYER_SIZE" in message


async def test_holes_count_as_layer_size(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    sparse = pax((b"GNU.sparse.size", b"%d" % (1 << 50)), (b"GNU.sparse.map", b"0,0")) + block(b"hole")
    message = await refused(registry, settings, tmp_path, stored(sparse + END))
    assert "files larger than the layer may be at 'hole'" in message


async def test_tar_headers_count_as_layer_size(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    members = [file("a"), *(hardlink(f"h{n}", "a") for n in range(3000))]
    assert "--max-layer-size" in await refused(registry, settings, tmp_path, members, max_layer_size=1_000_000)


async def test_image_size_is_limited(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    layers = [[file(f"f{n}", b"x" * 600_000)] for n in range(3)]
    message = await refused(registry, settings, tmp_path, *layers, max_image_size=1_500_000)
    assert "larger, uncompressed, than all layers together may be (1500000)" in message
    assert "--max-image-size" in message


async def test_number_of_entries_is_limited(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    layers = [[file(f"f{n}.{layer}") for n in range(400)] for layer in range(3)]
    message = await refused(registry, settings, tmp_path, *layers, max_entries=1000)
    assert "more entries than all layers together may have (1000)" in message
    assert "--max-entries or FASTPULL_MAX_ENTRIES" in message


async def test_image_exactly_at_the_limits_is_pulled(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, [file("a", b"x" * 1000)], [file("b", b"y" * 1000)])
    limits = fastpull.config.Limits(max_layer_size=2560, max_image_size=5120, max_entries=2, max_ratio=1)
    async with fastpull.Client(replace(settings, limits=limits)) as client:
        await client.pull(reference, tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == ["a", "b"]


def one_entry() -> EntryTable:
    scanner = LayerScanner("layer")
    scanner.feed(archive([file("f")]))
    return scanner.entries


def test_layer_read_twice_counts_once() -> None:
    quota = Quota(fastpull.config.Limits(max_image_size=1000), GIB)
    for _ in range(5):
        LayerQuota(quota, 0, "layer").check(900, 900, 0, one_entry())
    with pytest.raises(LimitExceeded):
        LayerQuota(quota, 1, "layer").check(200, 200, 0, one_entry())


@pytest.mark.parametrize(("room", "freely"), [(100 * GIB, GIB), (GIB, GIB // 10), (0, 16 << 20)])
def test_ratio_is_limited_above_a_tenth_of_the_free_space(room: int, freely: int) -> None:
    quota = LayerQuota(Quota(fastpull.config.Limits(), room), 0, "layer")
    quota.check(1, freely, 0, one_entry())
    with pytest.raises(LimitExceeded, match=r"each byte of the blob.*at 'f'.*--max-ratio"):
        quota.check(1, freely + 1, 0, one_entry())
    LayerQuota(Quota(fastpull.config.Limits(), room), 0, "layer").check(freely, freely * 2, 0, one_entry())


async def test_bomb_is_not_read_to_its_end(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    """Bytes after a limit are neither inflated nor hashed."""
    layer = stored([file("a", b"x" * 1_000_000), file("b", os.urandom(30 << 20))], bytes)
    limits = fastpull.config.Limits(max_layer_size=500_000)
    async with fastpull.Client(replace(settings, limits=limits)) as client:
        with pytest.raises(LimitExceeded):
            await client.pull(publish(registry, layer), tmp_path / "out")
    blobs = {
        str(blob.digest) for blob in fastpull.cache.CacheManager(settings.cache).blobs() if blob.size >= len(layer.blob)
    }
    assert not blobs, "only what was read to its end, and verified, is a blob of the cache"


@pytest.mark.parametrize("window_log", [28, 30])
async def test_zstd_window_is_limited(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, window_log: int
) -> None:
    layer = stored([file("a", b"x")], with_window(window_log))
    message = await refused(registry, settings, tmp_path, layer)
    assert f"a zstd window of {1 << window_log} bytes, of which 134217728 are allowed" in message
    assert "FASTPULL_MAX_ZSTD_WINDOW" in message
    limits = fastpull.config.Limits(max_zstd_window=1 << window_log)
    async with fastpull.Client(replace(settings, limits=limits)) as client:
        await client.pull(publish(registry, layer), tmp_path / "out")


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        (block(b"x", b"x", 1 << 21), "extended header over 1 MiB"),
        (block(b"f" * 3) + block(b"x", b"g", 1 << 21), "extended header over 1 MiB at 'fff'"),
        (header_of(file("d/" * 255 + "f")[0]), "path has more than 255 components at 'd/d/d"),
        (header_of(file("f", xattrs=((b"user.a", b"v" * 65_537),))[0]), "extended attributes over 64 KiB at 'f'"),
    ],
    ids=["header", "global-header", "depth", "attributes"],
)
async def test_fixed_limits_name_no_setting(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, members: bytes, reason: str
) -> None:
    message = await refused(registry, settings, tmp_path, stored(members + END))
    assert reason in message
    assert "No setting raises this limit" in message


# --- settings


def test_each_limit_has_a_variable_and_an_option() -> None:
    environment = {"FASTPULL_MAX_LAYER_SIZE": "1G", "FASTPULL_MAX_ENTRIES": "5", "FASTPULL_MAX_RATIO": "7"}
    limits = Settings.load(environment, max_entries="6", max_zstd_window="1M", max_image_size=9).limits
    assert limits == fastpull.config.Limits(GIB, 9, 6, 7, 1 << 20)
    assert Settings.load({}).limits == fastpull.config.Limits()


@pytest.mark.parametrize("name", ["max_layer_size", "max_image_size", "max_entries", "max_ratio", "max_zstd_window"])
@pytest.mark.parametrize("value", ["0", "-1", "much", "9999999999T"])
def test_limit_out_of_range_is_reported_by_name(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=name):
        Settings.load({f"FASTPULL_{name.upper()}": value})


async def test_command_line_accepts_limits(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    reference = publish(registry, [file("a"), file("b")])
    ended = await run("pull", reference, "-o", tmp_path / "out", "--max-entries", "1", cache=settings.cache)
    assert (ended.code, "more entries" in ended.err) == (25, True), ended.err
    ended = await run("pull", reference, "-o", tmp_path / "out", "--max-entries", "2", cache=settings.cache)
    assert ended.code == 0, ended.err


def test_limit_error_suggests_to_raise_the_limit() -> None:
    assert issubclass(LimitExceeded, FastpullError)
    assert "raise the limit" in str(LimitExceeded("layer", "too much", b"f", "max_entries"))
