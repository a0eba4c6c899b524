"""A real image: Debian with packages of its own and of Python's, built with buildah, unpacked as umoci unpacks it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fastpull
from bench.images import find_image
from bench.registry import serving
from fastpull.config import Settings
from tests.support.peers import umoci_unpack
from tests.support.trees import look


@pytest.mark.root
@pytest.mark.peer("buildah", "debootstrap", "docker-registry", "skopeo", "umoci")
@pytest.mark.timeout(1200)  # the image is built where it is not there yet
async def test_the_tree_of_a_real_image_is_umoci_s(settings: Settings, tmp_path: Path) -> None:
    image = await asyncio.to_thread(find_image, "small")
    with serving(image, str(tmp_path)) as reference:
        async with fastpull.Client(settings) as client:
            await client.pull(f"docker://{reference}", tmp_path / "from-registry")
            await client.pull(str(image), tmp_path / "from-layout")
    theirs = look(await asyncio.to_thread(umoci_unpack, Path(image.path), image.tag, tmp_path / "bundle"))
    assert len(theirs) > 10_000
    assert any(found.xattrs for found in theirs.values())
    assert any(len(found.links) > 1 for found in theirs.values())
    for output in ("from-registry", "from-layout"):
        ours = look(tmp_path / output)
        assert ours.keys() == theirs.keys()
        assert {path: found for path, found in ours.items() if found != theirs[path]} == {}
