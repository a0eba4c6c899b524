"""Runtime layers on top of every hostile image, with paths below each of its links."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastpull.errors import FastpullError, LayerError, LimitExceeded
from fastpull.layers.entry import EntryType
from fastpull.layers.tree import DirectoryNode, Origin, Tree
from fastpull.pipeline.runtime_layer import RuntimeLayer
from fastpull.runtimes.base import AddedDirectory, AddedFile, Additions, ImageFiles, OutputShape
from fastpull.runtimes.choose import profiles_for
from fastpull.sinks.base import Sink
from tests.hostile.recipe import AttackRecipe, RecipeRefused
from tests.hostile.recipes import ALL
from tests.hostile.running import check_refusal, look_at_directory, make_canary, outcome, state_of
from tests.runtimes.configs import image_of

_MAX_AIMS = 50


class Aimed:
    """A profile that puts a file and a directory below each path of an image that is a link."""

    name = "aimed"
    output_shape = OutputShape.ROOTFS
    sidecar_names = ()
    has_one_owner = False

    def __init__(self, links: list[bytes]) -> None:
        self._links = links

    def required_files(self, _image: object, /) -> tuple[bytes, ...]:
        return tuple(link + b"/file" for link in self._links)

    def additions(self, _image: object, _files: ImageFiles, /) -> Additions:
        files = [AddedFile(link + b"/aimed-file", b"aimed") for link in self._links]
        return Additions((*files, *(AddedDirectory(link + b"/aimed/folder", "it") for link in self._links)))


def add_runtime_layers(tree: Tree, sink: Sink) -> None:
    nodes = [(path, node) for path, node in tree.walk() if not isinstance(node, DirectoryNode)]
    links = [path for path, node in nodes if tree.type(node) is EntryType.SYMLINK][:_MAX_AIMS]

    async def read(_origin: Origin, size: int) -> bytes:
        return bytes(size)

    image = image_of(WorkingDir="/etc/../usr/./bin/../work", Env=["A=b"], Volumes={"/dev/shm/x": {}})
    for link in [*links, b""]:  # one link at a time, because a dangling link is refused
        profiles = [*profiles_for(["charliecloud", "plain"]), Aimed([link] if link else [])]
        dressing = RuntimeLayer(image, profiles)
        asyncio.run(dressing.plan(tree, read))
        try:
            dressing.apply(tree, sink)
        except (LayerError, LimitExceeded):
            if not link:
                raise


@pytest.fixture(scope="module")
def playground() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        make_canary(Path(name))
        yield Path(name)


@pytest.mark.root
@pytest.mark.parametrize("name", ALL)
def test_runtime_layer_stays_inside_the_root_for_any_links(name: str, playground: Path, tmp_path: Path) -> None:
    recipe: AttackRecipe = ALL[name]
    canary = playground / "canary"
    before = state_of(canary)
    error: FastpullError | None = outcome(recipe, "directory", tmp_path, canary, 2, add_runtime_layers)
    assert state_of(canary) == before
    if isinstance(recipe.verdict, RecipeRefused):
        check_refusal(error, recipe.verdict)
    elif error is not None:
        assert isinstance(error, LayerError | LimitExceeded), error
        assert os.listdir(tmp_path) == []
    else:
        found = look_at_directory(tmp_path / "out")
        assert (
            {b"ch/environment", b"ch/metadata.json", b"etc/hosts"} <= found.keys() or b"etc" in found or b"ch" in found
        )
