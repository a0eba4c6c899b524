"""Sequential writes to files and pipes."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastpull.sinks.tar.stream import Stream

CONTENT = os.urandom(3 << 20)


class StreamEnded(Exception):
    pass


def go_on() -> None:
    pass


@pytest.fixture
def source(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "source").write_bytes(CONTENT)
    fd = os.open(tmp_path / "source", os.O_RDONLY)
    yield fd
    os.close(fd)


def pour(stream: Stream, source: int) -> bytes:
    """Write pieces of all sizes, and return their content."""
    expected = []
    for size in (0, 1, 511, 70_000, 5, 1_400_000, 65_536, 65_535, 300_000):
        stream.write(b"h" * (size % 1000))
        stream.copy(source, size, size)
        expected += [b"h" * (size % 1000), CONTENT[size : 2 * size]]
    stream.write(CONTENT[:600_000])
    stream.flush()
    return b"".join([*expected, CONTENT[:600_000]])


def refuse(number: int) -> Callable[..., int]:
    def call(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("missing", [(), ("copy_file_range",), ("copy_file_range", "sendfile")], ids=len)
@pytest.mark.parametrize("number", [errno.EXDEV, errno.ENOSYS, errno.EINVAL])
def test_file_is_written_with_every_copy_method(
    tmp_path: Path, source: int, missing: tuple[str, ...], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.setattr(os, name, refuse(number))
    with open(tmp_path / "out", "w+b", buffering=0) as out:
        expected = pour(Stream(out.fileno(), go_on), source)
    assert (tmp_path / "out").read_bytes() == expected


def test_file_is_written_from_current_position_also_in_append_mode(tmp_path: Path, source: int) -> None:
    for mode in ("r+b", "ab"):
        (tmp_path / "out").write_bytes(b"before")
        with open(tmp_path / "out", mode, buffering=0) as out:
            out.seek(6)
            expected = pour(Stream(out.fileno(), go_on), source)
        assert (tmp_path / "out").read_bytes() == b"before" + expected


@pytest.mark.parametrize("blocking", [True, False])
def test_pipe_is_written_as_fast_as_it_is_read(source: int, blocking: bool) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, blocking)
    found = bytearray()

    def read() -> None:
        while piece := os.read(reader, 10_000):
            found.extend(piece)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        expected = pour(Stream(writer, go_on), source)
    finally:
        os.close(writer)
        thread.join()
        os.close(reader)
    assert found == expected


@pytest.mark.parametrize("large", [True, False])
def test_full_pipe_does_not_block_cancellation(source: int, large: bool) -> None:
    looks = 0

    def check() -> None:
        nonlocal looks
        looks += 1
        if looks > 5:
            raise StreamEnded

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    stream = Stream(writer, check)
    with pytest.raises(StreamEnded):
        if large:
            stream.copy(source, 0, len(CONTENT))
        else:
            stream.write(CONTENT)
    os.close(reader)
    os.close(writer)


def test_closed_pipe_is_an_error(source: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        Stream(writer, go_on).copy(source, 0, len(CONTENT))
    os.close(writer)


def test_full_disk_is_an_error(source: int) -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match="No space left"):
        Stream(full.fileno(), go_on).copy(source, 0, len(CONTENT))


@pytest.mark.parametrize("size", [1000, 1_000_000])
def test_short_source_is_an_error(tmp_path: Path, source: int, size: int) -> None:
    with open(tmp_path / "out", "w+b", buffering=0) as out, pytest.raises(OSError, match="shorter"):
        Stream(out.fileno(), go_on).copy(source, len(CONTENT) - 10, size)


@pytest.mark.parametrize("skip", [True, False])
def test_holes_stay_holes_if_allowed(tmp_path: Path, skip: bool) -> None:
    source = os.open(tmp_path / "source", os.O_RDWR | os.O_CREAT)
    holes = [0, 1 << 20, 2 << 20, 8 << 20, (8 << 20) + 5, 9 << 20]
    os.pwrite(source, CONTENT[: 1 << 20], 1 << 20)
    os.pwrite(source, b"12345", 8 << 20)
    os.ftruncate(source, 9 << 20)
    whole = os.pread(source, 9 << 20, 0)
    with open(tmp_path / "out", "w+b", buffering=0) as out:
        stream = Stream(out.fileno(), go_on, skip_holes=skip)
        stream.write(b"head")
        for start, stop in ((0, 9 << 20), (1 << 20, 2 << 20), (2 << 20, 8 << 20), (100, 1 << 20), (3 << 20, 9 << 20)):
            stream.copy(source, start, stop - start, holes)
        stream.write(b"tail")
        stream.flush()
        blocks = os.fstat(out.fileno()).st_blocks
    expected = whole + whole[1 << 20 : 2 << 20] + whole[2 << 20 : 8 << 20] + whole[100 : 1 << 20] + whole[3 << 20 :]
    assert (tmp_path / "out").read_bytes() == b"head" + expected + b"tail"
    assert (blocks * 512 < 4 << 20) == skip
    os.close(source)
