"""Random stacks of layers with symbolic links and entries below them: the tree is the one that umoci unpacks.

Many stacks are in one image, each with names of its own, since starting umoci takes longer than unpacking a stack.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

import fastpull
from fastpull.config.settings import Settings
from fastpull.layers.entry import Entry, EntryType
from tests.support.images.layouts import TAG, write_layout
from tests.support.layers import Member
from tests.support.link_stacks import LAYERS, random_stack
from tests.support.merge_model import ModelRefused, merge_model
from tests.support.peers import umoci_unpack
from tests.support.trees import FoundEntry, look

_STACKS = int(os.environ.get("FASTPULL_TESTS_LINK_STACKS") or 2000)
_IN_ONE_IMAGE = 250


def follows_own_links(stack: list[list[Member]]) -> bool:
    """Whether fastpull takes the stack, something in it is below a link of its own layer, and umoci can unpack it."""
    layers = [[entry for entry, _ in layer] for layer in stack]
    try:
        merge_model(layers, takes_lower_files_for_directories=False)
    except ModelRefused:
        return False
    return any(_is_below_own_link(layer) for layer in layers)


def _is_below_own_link(layer: list[Entry]) -> bool:
    links = [entry.path + b"/" for entry in layer if entry.type is EntryType.SYMLINK]
    return any(entry.path.startswith(link) for entry in layer for link in links)


def tree_of(root: Path) -> dict[bytes, FoundEntry]:
    """What is below a directory, by path."""
    found = look(root)
    del found[b"."]
    return found


@pytest.mark.root
@pytest.mark.peer("umoci")
@pytest.mark.parametrize("seed", range(-(-_STACKS // _IN_ONE_IMAGE)))
async def test_entries_below_links_of_own_layer_equal_umoci(seed: int, settings: Settings, tmp_path: Path) -> None:
    source = random.Random(seed)
    layers: list[list[Member]] = [[] for _ in range(LAYERS)]
    for number in range(_IN_ONE_IMAGE):
        names = [f"{letter}{number}" for letter in "abc"]
        stack = random_stack(source, names)
        while not follows_own_links(stack):
            stack = random_stack(source, names)
        for whole, layer in zip(layers, stack, strict=True):
            whole.extend(layer)
    write_layout(str(tmp_path / "layout"), [[(entry, [content]) for entry, content in layer] for layer in layers], 1)
    theirs = await asyncio.to_thread(umoci_unpack, tmp_path / "layout", TAG, tmp_path / "bundle")
    async with fastpull.Client(settings) as client:
        await client.pull(f"oci:{tmp_path}/layout:{TAG}", tmp_path / "out")
    assert tree_of(tmp_path / "out") == tree_of(theirs)
