"""Work grows linearly with the entries of adversarial images, counted in executed lines and not by a clock.

A step is an executed line of fastpull's Python, on any thread. Each size is twice the previous one and has to add twice
as many steps as the previous doubling; constant work does not count.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import fastpull
from fastpull.config.settings import Settings
from fastpull.demo.registry import LoopbackRegistry
from fastpull.layers.index import LayerIndex
from fastpull.layers.merge import merge
from tests.support.images.adversarial import ADVERSARIAL, AdversarialImage
from tests.support.images.layouts import TAG, write_layout
from tests.support.layers import Member, file, folder, opaque, publish, symlink, whiteout

_MAX_GROWTH = 2.3  # quadratic work has 4
_OURS = os.path.dirname(fastpull.__file__)


def sizes(shape: str, least: int) -> tuple[int, int, int]:
    """Return three numbers of entries; an entry with a deep path costs as much as a hundred others."""
    least = least // 10 if shape == "deep" else least
    return least, 2 * least, 4 * least


def lines_of(work: Callable[[], object]) -> int:
    """Return the number of executed lines of fastpull in all threads."""
    counts: dict[int, int] = {}

    def on_line(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            thread = threading.get_ident()
            counts[thread] = counts.get(thread, 0) + 1
        return on_line

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        return on_line if frame.f_code.co_filename.startswith(_OURS) else None

    before = sys.gettrace()
    threading.settrace(on_call)
    sys.settrace(on_call)
    try:
        work()
    finally:
        sys.settrace(before)
        threading.settrace(None)
    return sum(counts.values())


def check_growth(steps: list[int], entries: int) -> None:
    least, middle, most = steps
    assert most - middle > entries / 8, f"steps are counted: {steps}"
    assert (most - middle) / (middle - least) < _MAX_GROWTH, steps


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_merge_is_linear_in_entries(name: str) -> None:
    steps = []
    for size in sizes(name, 2000):
        shape = AdversarialImage(name, size)
        indexes = [LayerIndex.of(entry for entry, _ in shape.members(layer)) for layer in range(shape.layers)]
        steps.append(lines_of(lambda indexes=indexes: merge(indexes)))  # type: ignore[misc]
    check_growth(steps, size)


@pytest.mark.parametrize("output", ["out/", "out.sqsh"])
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_pull_is_linear_in_entries(name: str, output: str, settings: Settings, tmp_path: Path) -> None:
    """The indexes are in the cache; without them, the number of written files depends on timing."""
    steps = []
    for size in sizes(name, 200):
        shape, path = AdversarialImage(name, size), tmp_path / f"layout-{size}"
        write_layout(str(path), map(shape.members, range(shape.layers)), 1)
        fastpull.pull(f"oci:{path}:{TAG}", str(tmp_path / "first.tar"), settings=settings)
        (tmp_path / "first.tar").unlink()

        def pull(path: Path = path) -> None:
            fastpull.pull(f"oci:{path}:{TAG}", str(tmp_path / output), settings=settings)

        steps.append(lines_of(pull))
        made = tmp_path / output.rstrip("/")
        shutil.rmtree(made) if made.is_dir() else made.unlink()
    check_growth(steps, size)


def layers_of_one_file(count: int) -> list[list[Member]]:
    """Return small layers that add to one directory through a link, and hide entries of the layer below."""
    return [
        [
            folder("d"),
            symlink("l", "d"),
            file(f"l/f{number}", b"x"),
            whiteout(f"d/f{number - 1}"),
            opaque(f"d/o{number - 1}"),
        ]
        for number in range(count)
    ]


def test_merge_is_linear_in_layers() -> None:
    steps = []
    for count in (200, 400, 800):
        indexes = [LayerIndex.of(entry for entry, _ in layer) for layer in layers_of_one_file(count)]
        steps.append(lines_of(lambda indexes=indexes: merge(indexes)))  # type: ignore[misc]
    check_growth(steps, count)


@pytest.mark.parametrize("output", ["out/", "out.sqsh", "out.tar"])
@pytest.mark.parametrize("has_indexes", [False, True])
def test_pull_from_layout_is_linear_in_layers(
    output: str, has_indexes: bool, settings: Settings, tmp_path: Path
) -> None:
    steps = []
    for count in (30, 75, 150, 300):  # the first pull imports modules
        path = tmp_path / f"layout-{count}"
        layers = [[(entry, [content]) for entry, content in layer] for layer in layers_of_one_file(count)]
        write_layout(str(path), layers, 1)
        if has_indexes:
            fastpull.pull(f"oci:{path}:{TAG}", str(tmp_path / "first.tar"), settings=settings)
            (tmp_path / "first.tar").unlink()

        def pull(path: Path = path, count: int = count) -> None:
            fastpull.pull(f"oci:{path}:{TAG}", f"{tmp_path}/{count}-{output}", settings=settings)

        steps.append(lines_of(pull))
    check_growth(steps[1:], count)


def test_pull_from_registry_is_linear_in_layers(settings: Settings, tmp_path: Path) -> None:
    steps = []
    for count in (25, 50, 100, 200):  # the first pull imports modules

        async def pull(count: int = count) -> None:
            async with LoopbackRegistry() as registry, fastpull.Client(settings) as client:
                await client.pull(publish(registry, *layers_of_one_file(count)), tmp_path / f"{count}")

        steps.append(lines_of(lambda pull=pull: asyncio.run(pull())))  # type: ignore[misc]
        shutil.rmtree(tmp_path / f"{count}")
        shutil.rmtree(settings.cache)
    check_growth(steps[1:], count)
