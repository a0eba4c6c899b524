"""Compressed streams: the same bytes for every number of threads."""

from __future__ import annotations

import gzip
import io
import os
import random
import subprocess
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import pytest
import xxhash
import zstandard

from fastpull.concurrency.threads import Aborted
from fastpull.sinks.tar.packed import PackedStream, packer_of
from fastpull.sinks.tar.stream import Stream

CHUNKS = {"gzip": 1 << 20, "zstd": 4 << 20}


def compressible(size: int) -> bytes:
    choose = random.Random(size)
    words = [choose.randbytes(choose.randrange(3, 30)) for _ in range(500)]
    content = b"".join(choose.choices(words, k=size // 16 + 1))
    return (content * 2)[:size]


def packed(
    path: Path, compression: str, content: bytes, workers: int = 2, piece: int = 300_000, memory: int = 64 << 20
) -> bytes:
    """Return the stream of content that is partly written and partly copied from a file."""
    (path / "source").write_bytes(content)
    source, fd = os.open(path / "source", os.O_RDONLY), os.open(path / "out", os.O_CREAT | os.O_TRUNC | os.O_RDWR)
    with ThreadPoolExecutor(workers) as pool:
        stream = PackedStream(Stream(fd, lambda: None), packer_of(compression), pool, memory)
        for number, start in enumerate(range(0, len(content), piece)):
            size = min(piece, len(content) - start)
            if number % 2:
                stream.write(content[start : start + size])
            else:
                stream.copy(source, start, size)
        stream.flush()
    result = (path / "out").read_bytes()
    assert stream.fingerprint == xxhash.xxh3_64(result).hexdigest()
    os.close(source)
    os.close(fd)
    return result


def unpacked(compression: str, content: bytes) -> bytes:
    if compression.startswith("gzip"):
        return gzip.decompress(content)
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content), read_across_frames=True).read()


@pytest.mark.parametrize("compression", ["gzip", "gzip:1", "zstd", "zstd:1"])
@pytest.mark.parametrize("edge", [-1, 0, 1])
@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_decompressed_stream_equals_content(tmp_path: Path, compression: str, edge: int, chunks: int) -> None:
    content = compressible(max(0, chunks * CHUNKS[compression[:4]] + edge))
    result = packed(tmp_path, compression, content)
    assert unpacked(compression, result) == content


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_bytes_depend_only_on_content(tmp_path: Path, compression: str) -> None:
    content = compressible(9_000_000)
    first = packed(tmp_path, compression, content)
    for workers, piece, memory in ((1, 70_000, 0), (5, 9_000_000, 64 << 20), (3, 12_345, 1 << 20)):
        assert packed(tmp_path, compression, content, workers, piece, memory) == first


def test_gzip_stream_is_one_member_of_usual_size(tmp_path: Path) -> None:
    content = compressible(9_000_000)
    result = packed(tmp_path, "gzip:6", content)
    inflater = zlib.decompressobj(31)
    assert inflater.decompress(result) == content
    assert inflater.eof
    assert inflater.unused_data == b""
    assert len(result) < 1.01 * len(gzip.compress(content, 6))


@pytest.mark.parametrize(("compression", "program"), [("gzip", "gzip"), ("zstd", "zstd")])
def test_usual_programs_decompress_stream(tmp_path: Path, compression: str, program: str) -> None:
    content = compressible(5_000_000)
    result = packed(tmp_path, compression, content)
    try:
        got = subprocess.run([program, "-dc"], input=result, capture_output=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip(f"no {program}")
    assert got == content


def test_pending_chunks_respect_memory_limit(tmp_path: Path) -> None:
    waiting, gate = [], threading.Event()

    class Slow:
        chunk_size: ClassVar[int] = 1000
        header: ClassVar[bytes] = b""

        def pack(self, chunk: bytes, before: bytes, *, is_last: bool) -> bytes:
            gate.wait(10)
            return chunk

        def note(self, chunk: bytes) -> None:
            waiting.append(len(chunk))

        def trailer(self) -> bytes:
            return b""

    fd = os.open(tmp_path / "out", os.O_CREAT | os.O_RDWR)
    with ThreadPoolExecutor(2) as pool:
        stream = PackedStream(Stream(fd, lambda: None), Slow(), pool, 10_000)
        writer = threading.Thread(target=stream.write, args=(bytes(100_000),))
        writer.start()
        while len(waiting) < 6:
            pass
        writer.join(0.05)
        assert len(waiting) == 6, "five are on their way, the next one waits"
        gate.set()
        writer.join()
        stream.flush()
    assert os.fstat(fd).st_size == 100_000
    os.close(fd)


def test_write_error_and_cancellation_are_raised(tmp_path: Path) -> None:
    def cancel() -> None:
        raise Aborted

    fd = os.open(tmp_path / "out", os.O_CREAT | os.O_RDWR)
    read_only = os.open(tmp_path / "out", os.O_RDONLY)
    cases: list[tuple[int, Callable[[], None], type[BaseException]]] = [
        (fd, cancel, Aborted), (read_only, lambda: None, OSError)
    ]  # fmt: skip
    for target, check, kind in cases:
        with ThreadPoolExecutor(1) as pool:
            stream = PackedStream(Stream(target, check), packer_of("zstd"), pool, 0)
            with pytest.raises(kind):
                stream.write(random.Random(1).randbytes(20_000_000))
    os.close(fd)
    os.close(read_only)
