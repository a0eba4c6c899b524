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

UNLOCKING = """
import os

unlink = os.unlink

def die(name, *rest, **options):
    if name.startswith("image-"):
        os.kill(os.getpid(), 9)
    unlink(name, *rest, **options)

os.unlink = die
"""  # strace cannot tell the removal of this lock from that of the others: it counts per thread


@pytest.mark.peer("strace")
@pytest.mark.parametrize(
    ("call", "place", "number"),
    [
        ("fchmod", "{images}/.{name}.draft", 1),
        ("renameat", "{images}", 3),  # after the sink's own draft, and the metadata
        ("fsync", "{images}/.{name}.draft", 1),
        ("fsync", "{images}", 1),
        (UNLOCKING, "", 0),
    ],
    ids=["sealing", "publishing", "syncing", "syncing the name", "unlocking"],
)
async def test_a_death_leaves_the_image_or_nothing(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, call: str, place: str, number: int
) -> None:
    reference, output = publish(registry, *LAYERS), tmp_path / "out.sqsh"
    calm = replace(settings, cache=str(tmp_path / "calm"))
    async with fastpull.Client(calm) as client:
        expected = Path((await client.ensure_squashfs(reference)).path)
    inner = Path(settings.cache, "v1")
    arguments = ("pull", reference, "-o", output, "--keep-images", "--sync")
    if call == UNLOCKING:
        (tmp_path / "sitecustomize.py").write_text(UNLOCKING)
        died = await run(*arguments, cache=settings.cache, PYTHONPATH=str(tmp_path))
    else:
        path = place.format(images=inner / "images/sha256", name=expected.stem)
        inject = f"--inject={call}:signal=SIGKILL:when={number}"
        under = ("strace", "-f", "-qq", "-o", "/dev/null", "-P", path, "-e", f"trace={call}", inject)
        died = await run(*arguments, cache=settings.cache, under=under)
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
