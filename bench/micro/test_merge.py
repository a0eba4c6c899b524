"""Merge of 100,000 entries in the layers of one image."""

from __future__ import annotations

from functools import cache

import pytest

from bench.micro.measuring import Benchmark, report
from fastpull.layers.entry import Entry, EntryType
from fastpull.layers.index import LayerIndex
from fastpull.layers.merge import merge

_FILES_PER_FOLDER = 15


@pytest.mark.parametrize(
    "sizes", [(100_000,), (60_000, 30_000, 8_000, 2_000)], ids=["one-layer", "four-layers-that-overlap"]
)
def test_merge(benchmark: Benchmark, sizes: tuple[int, ...]) -> None:
    indexes = [_index(size, number) for number, size in enumerate(sizes)]
    tree = benchmark.pedantic(merge, (indexes,), rounds=5)
    assert tree.root.children
    report(benchmark, entries=sum(sizes))


@cache
def _index(size: int, layer: int) -> LayerIndex:
    """Return a layer of directories with files, links and, above the base, whiteouts; all layers share their paths."""
    entries: list[Entry] = []
    folder = 0
    while len(entries) < size:
        path = b"usr/lib/python3/site-packages/package_%05d" % folder
        entries.append(Entry(path, EntryType.DIRECTORY, 0o755))
        entries.extend(
            Entry(path + b"/module_%d_%02d.py" % (layer % 2, number), EntryType.FILE, size=1000)
            for number in range(_FILES_PER_FOLDER)
        )
        entries.append(Entry(path + b"/first", EntryType.SYMLINK, 0o777, linkname=b"module_0_00.py"))
        entries.append(Entry(path + b"/same", EntryType.HARDLINK, linkname=path + b"/module_%d_01.py" % (layer % 2)))
        if layer:
            entries.append(Entry(path + b"/.wh.module_0_02.py", EntryType.FILE))
        folder += 1
    return LayerIndex.of(entries[:size])
