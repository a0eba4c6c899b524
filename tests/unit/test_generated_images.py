"""Generated images: dimensions, reproducibility and content."""

from __future__ import annotations

import gzip
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

import fastpull
from fastpull.config.settings import Settings
from tests.support.images.generated import SHAPES, Shape
from tests.support.images.layouts import TAG, Layout, write_layout
from tests.support.images.recipes import IMAGES, Recoding

SMALL = Shape("small", layers=3, files=300, file_size=3000, replaced=10)


def make(path: Path, shape: Shape) -> Layout:
    write_layout(str(path), map(shape.members, range(shape.layers)))
    return Layout(shape.name, str(path), TAG)


def names(blob: str) -> list[str]:
    with tarfile.open(blob) as tar:
        return [member.name for member in tar if member.isfile()]


def test_shape_gives_reproducible_images(tmp_path: Path) -> None:
    first, second = (make(tmp_path / name, SMALL).facts() for name in ("one", "two"))
    assert first == second
    assert make(tmp_path / "three", replace(SMALL, file_size=5000)).facts() != first


def test_image_has_the_dimensions_of_its_shape(tmp_path: Path) -> None:
    layers = [names(blob) for blob in make(tmp_path / "image", SMALL).blobs()]
    assert len(layers) == 3
    assert sum(map(len, layers)) == 300
    assert (
        len({name for layer in layers for name in layer}) == 300 - 2 * 10
    )  # of layers above the base one in ten replaces
    assert all(len(layer) == len(set(layer)) for layer in layers)


def test_content_is_as_compressible_as_programs(tmp_path: Path) -> None:
    layout = make(tmp_path / "image", SMALL)
    blobs = [Path(blob).read_bytes() for blob in layout.blobs()]
    ratio = sum(map(len, blobs)) / sum(len(gzip.decompress(blob)) for blob in blobs)
    assert 0.2 < ratio < 0.5


async def test_generated_image_can_be_pulled(tmp_path: Path, settings: Settings) -> None:
    layout = make(tmp_path / "image", SMALL)
    async with fastpull.Client(settings) as client:
        await client.pull(str(layout), tmp_path / "out")
    assert sum(path.is_file() for path in (tmp_path / "out").rglob("*")) == 280


def test_extreme_shapes_are_extreme() -> None:
    shapes = {shape.name: shape for shape in SHAPES}
    assert shapes["many-layers"].layers >= 60
    assert shapes["small-files"].files >= 150_000
    assert shapes["small-files"].file_size < 4096
    assert shapes["fat"].layers == 1
    assert shapes["fat"].files * shapes["fat"].file_size >= 1_500_000_000


@pytest.mark.parametrize("name", IMAGES)
def test_every_image_has_a_version_and_a_known_base(name: str) -> None:
    image = IMAGES[name]
    assert image.name == name
    assert len(image.version) == 12
    if not isinstance(image, Shape) and image.base:
        assert image.base in IMAGES
    if isinstance(image, Recoding):
        assert image.version != IMAGES[image.base].version
