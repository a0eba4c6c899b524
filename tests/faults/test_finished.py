"""Death of a process that builds a finished image, at any moment."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import fastpull
from fastpull.config.settings import Settings
from tests.support.layers import file, publish
from tests.support.processes import run
from tests.support.registry import FaultyRegistry

LAYERS = ([file("a", os.urandom(300_000))], [file("b", b"b" * 5000)])


@pytest.mark.peer("strace")
@pytest.mark.parametrize(
    ("calls", "place"),
    [
        ("fchmod", "{images}/.{name}.draft"),
        ("rename,renameat,renameat2", "{images}/.{name}.draft"),
        ("fsync", "{images}/.{name}.draft"),
        ("fsync", "{images}"),
        ("unlink,unlinkat", "{locks}/image-{name}"),
    ],
    ids=["sealing", "publishing", "syncing", "syncing the name", "unlocking"],
)
async def test_a_death_leaves_the_image_or_nothing(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, calls: str, place: str
) -> None:
    reference, output = publish(registry, *LAYERS), tmp_path / "out.sqsh"
    calm = replace(settings, cache=str(tmp_path / "calm"))
    async with fastpull.Client(calm) as client:
        expected = Path((await client.ensure_squashfs(reference)).path)
    inner = Path(settings.cache, "v1")
    path = place.format(images=inner / "images/sha256", locks=inner / "locks", name=expected.stem)
    under = ("strace", "-f", "-qq", "-o", "/dev/null", "-P", path, "-e", f"trace={calls}")
    arguments = ("pull", reference, "-o", output, "--keep-images", "--sync")
    died = await run(*arguments, cache=settings.cache, under=(*under, f"--inject={calls}:signal=SIGKILL"))
    assert (died.code, output.exists()) == (-9, False), died.err
    assert fastpull.cache.CacheManager(settings.cache).verify(dry_run=True).is_sound
    again = await run("pull", reference, "-o", output, cache=settings.cache)
    assert again.code == 0, again.err
    assert output.read_bytes() == expected.read_bytes()
    kept = await run("pull", reference, "-o", output, "--keep-images", "--force", cache=settings.cache)
    assert kept.code == 0, kept.err
    images = [name for name in os.listdir(inner / "images/sha256") if "fastpull" not in name]
    assert sorted(images) == [f"{expected.stem}.sqsh", f"{expected.stem}.sqsh.seal"]
    assert os.listdir(inner / "locks") == []
    assert fastpull.cache.CacheManager(settings.cache).verify().is_sound
