"""A real image: Debian with packages of its own and of Python's, built with buildah, unpacked as umoci unpacks it.

``FASTPULL_TESTS_IMAGE=full`` takes the large one of the benchmarks, of 1.7 GB.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import fastpull
from fastpull.config.settings import Settings
from tests.support.docker_registry import serving
from tests.support.images.store import find_image
from tests.support.peers import mounted, mounted_by_user, umoci_unpack, unsquash
from tests.support.trees import FoundEntry, as_fuse_shows, look

IMAGE = os.environ.get("FASTPULL_TESTS_IMAGE", "small")


@pytest.mark.root
@pytest.mark.peer("buildah", "debootstrap", "docker-registry", "skopeo", "umoci")
@pytest.mark.timeout(1200)  # the image is built where it is not there yet
async def test_tree_of_real_image_equals_umoci(settings: Settings, tmp_path: Path) -> None:
    image = await asyncio.to_thread(find_image, IMAGE)
    with serving(image, str(tmp_path)) as reference:
        async with fastpull.Client(settings) as client:
            await client.pull(f"docker://{reference}", tmp_path / "from-registry")
            await client.pull(str(image), tmp_path / "from-layout")
    theirs = look(await asyncio.to_thread(umoci_unpack, Path(image.path), image.tag, tmp_path / "bundle"))
    assert len(theirs) > 10_000
    assert any(found.xattrs for found in theirs.values())
    assert any(len(found.links) > 1 for found in theirs.values())
    for output in ("from-registry", "from-layout"):
        assert differences(look(tmp_path / output), theirs) == {}


def differences(
    ours: dict[bytes, FoundEntry], theirs: dict[bytes, FoundEntry]
) -> dict[bytes, tuple[FoundEntry | None, FoundEntry | None]]:
    paths = ours.keys() | theirs.keys()
    return {path: (ours.get(path), theirs.get(path)) for path in paths if ours.get(path) != theirs.get(path)}


@pytest.mark.root
@pytest.mark.peer("buildah", "debootstrap", "squashfuse", "umoci", "unsquashfs")
@pytest.mark.timeout(1200)
async def test_squashfs_of_real_image_equals_umoci_for_every_reader(settings: Settings, tmp_path: Path) -> None:
    image = await asyncio.to_thread(find_image, IMAGE)
    async with fastpull.Client(settings) as client:
        await client.pull(str(image), tmp_path / "image.sqsh")
    theirs = look(await asyncio.to_thread(umoci_unpack, Path(image.path), image.tag, tmp_path / "bundle"))
    extracted = await asyncio.to_thread(unsquash, tmp_path / "image.sqsh", tmp_path / "extracted")
    assert differences(look(extracted), theirs) == {}
    with mounted(tmp_path / "image.sqsh", tmp_path / "kernel") as place:
        assert differences(look(place), theirs) == {}
    with mounted_by_user(tmp_path / "image.sqsh", tmp_path / "fuse") as place:
        seen = {path: as_fuse_shows(found) for path, found in look(place).items()}
    assert differences(seen, {path: as_fuse_shows(found) for path, found in theirs.items()}) == {}
