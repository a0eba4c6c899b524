"""Work grows with the entries and not faster, for the shapes of `bench.hard`: counted in steps, by no clock.

A step is a line of fastpull's Python, on any thread. From each size to the next, which is twice as large, twice as many
steps are to be added; what a pull takes anyway does not count.
"""

from __future__ import annotations

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
from bench.hard import HARD, Hard
from bench.layouts import TAG, write_layout
from fastpull.config import Settings
from fastpull.layers.index import LayerIndex
from fastpull.layers.merge import merge

_MAX_GROWTH = 2.3  # quadratic work has 4
_OURS = os.path.dirname(fastpull.__file__)


def sizes(shape: str, least: int) -> tuple[int, int, int]:
    """Numbers of entries; an entry of a deep path is as much work as a hundred others."""
    least = least // 10 if shape == "deep" else least
    return least, 2 * least, 4 * least


def lines_of(work: Callable[[], object]) -> int:
    """How many lines of fastpull are run, in all threads."""
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


@pytest.mark.parametrize("name", HARD)
def test_merging_grows_with_the_entries(name: str) -> None:
    steps = []
    for size in sizes(name, 2000):
        shape = Hard(name, size)
        indexes = [LayerIndex.of(entry for entry, _ in shape.members(layer)) for layer in range(shape.layers)]
        steps.append(lines_of(lambda indexes=indexes: merge(indexes)))  # type: ignore[misc]
    check_growth(steps, size)


@pytest.mark.parametrize("output", ["out/", "out.sqsh"])
@pytest.mark.parametrize("name", HARD)
def test_pulls_grow_with_the_entries(name: str, output: str, settings: Settings, tmp_path: Path) -> None:
    """Of blobs whose indexes are in the cache: otherwise chance has a say in what need not be written."""
    steps = []
    for size in sizes(name, 200):
        shape, path = Hard(name, size), tmp_path / f"layout-{size}"
        write_layout(str(path), map(shape.members, range(shape.layers)), 1)
        fastpull.pull(f"oci:{path}:{TAG}", str(tmp_path / "first.tar"), settings=settings)
        (tmp_path / "first.tar").unlink()

        def pull(path: Path = path) -> None:
            fastpull.pull(f"oci:{path}:{TAG}", str(tmp_path / output), settings=settings)

        steps.append(lines_of(pull))
        made = tmp_path / output.rstrip("/")
        shutil.rmtree(made) if made.is_dir() else made.unlink()
    check_growth(steps, size)
