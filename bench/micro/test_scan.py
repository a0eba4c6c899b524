"""Scanner: chunks to entries and spans."""

from __future__ import annotations

import pytest

from bench.micro.data import BIG_FILES, SMALL_FILES, chunks_of, tar_of
from bench.micro.measuring import Benchmark, report
from fastpull.native.layer_scanner import LayerScanner


@pytest.mark.parametrize("files", [SMALL_FILES, BIG_FILES], ids=["many-small", "few-big"])
def test_scan(benchmark: Benchmark, files: tuple[int, int]) -> None:
    layer = tar_of(*files)
    chunks = chunks_of(layer)

    def scan() -> int:
        scanner = LayerScanner("layer")
        for chunk in chunks:
            scanner.feed(chunk)
        scanner.finish()
        return len(scanner.entries)

    entries = benchmark.pedantic(scan, rounds=20)
    assert entries > files[0]
    report(benchmark, bytes=len(layer), entries=entries)
