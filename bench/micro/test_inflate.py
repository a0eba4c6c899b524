"""Decompression of a layer in memory into chunks."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from bench.micro.data import SMALL_FILES, gzip_of, tar_of, zstd_of
from bench.micro.measuring import Benchmark, report
from fastpull.layers.decompress import inflate
from fastpull.pipeline.layer import CHUNK


@pytest.mark.parametrize("compress", [gzip_of, zstd_of], ids=["gzip", "zstd"])
def test_inflate(benchmark: Benchmark, compress: Callable[[int, int], bytes]) -> None:
    blob = compress(*SMALL_FILES)

    def read_all() -> int:
        stream, size = inflate(_MemoryBlob(blob), "layer"), 0
        while chunk := stream.read(CHUNK):
            size += len(chunk)
        return size

    assert benchmark.pedantic(read_all, rounds=10) == len(tar_of(*SMALL_FILES))
    report(benchmark, bytes=len(tar_of(*SMALL_FILES)))
    benchmark.extra_info["compressed_ratio"] = round(len(blob) / len(tar_of(*SMALL_FILES)), 3)


class _MemoryBlob(io.RawIOBase):
    """A blob in memory with the interface of a cached blob."""

    def __init__(self, content: bytes) -> None:
        self._file = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what every caller passes
        return self._file.readinto(buffer)
