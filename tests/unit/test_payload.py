"""The payload of a layer in one file: both engines, one contract."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fastpull.layers.archive import archive
from tests.support.engines import ENGINES, Engine
from tests.support.headers import END, block
from tests.support.layers import file, folder, symlink
from tests.unit.test_scanner import SPARSE, sparse_00, sparse_01, sparse_10, sparse_old


@dataclass
class Written:
    content: bytes = b""
    starts: list[int] = field(default_factory=list)
    holes: list[int] = field(default_factory=list)
    blocks: int = 0


@pytest.fixture(params=ENGINES, ids=repr)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    return found


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "spool", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def write(engine: Engine, spool: int, data: bytes, chunk: int = 1 << 20, wanted: bytearray | None = None) -> Written:
    scanner = engine.scanner()
    writer = engine.payload(scanner.entries, spool, wanted)
    for at in range(0, len(data), chunk):
        piece = data[at : at + chunk]
        assert scanner.feed(piece) == 0
        assert writer.write(piece, scanner.spans) == 0
    state = os.fstat(spool)
    return Written(
        os.pread(spool, min(state.st_size, 1 << 20), 0),
        list(array("q", writer.starts_bytes())),
        list(array("q", writer.holes_bytes())),
        state.st_blocks,
    )


@pytest.mark.parametrize("chunk", [1 << 20, 4096, 512, 333])
def test_payload_is_contiguous_at_any_chunk_size(engine: Engine, spool: int, chunk: int) -> None:
    contents = [os.urandom(size) for size in (10, 0, 512, 5000, 1)]
    members = [
        folder("d"),
        *(file(f"d/{number}", content) for number, content in enumerate(contents)),
        symlink("s", "d"),
    ]
    written = write(engine, spool, archive(members), chunk)
    assert written.content == b"".join(contents)
    assert written.starts == [-1, 0, 10, 10, 522, 5522]
    assert written.holes == []


def test_chunk_may_hold_more_files_than_one_pwritev_accepts(engine: Engine, spool: int) -> None:
    contents = [b"%d" % number for number in range(2000)]
    written = write(engine, spool, archive(file(f"f{n}", content) for n, content in enumerate(contents)), 4 << 20)
    assert written.content == b"".join(contents)


def test_unwanted_payload_takes_no_space(engine: Engine, spool: int) -> None:
    data = archive([file("a", b"1" * 700), file("b", b"2" * 700), file("c", b"3"), file("d", b"4")])
    written = write(engine, spool, data, 512, bytearray(b"\0\1\0"))
    assert written == Written(b"2" * 700 + b"4", [-1, 0, -1, 700], [], written.blocks)


@pytest.mark.parametrize("make", [sparse_old, sparse_00, sparse_01, sparse_10])
@pytest.mark.parametrize("chunk", [1 << 20, 512, 333])
def test_holes_are_skipped_and_reported(engine: Engine, spool: int, make: object, chunk: int) -> None:
    data = block(b"a", size=512) + b"a" * 512 + make() + block(b"b", size=512) + b"b" * 512 + END  # type: ignore[operator]
    written = write(engine, spool, data, chunk)
    assert written.content == b"a" * 512 + SPARSE + b"b" * 512
    assert written.starts == [0, 512, 512 + len(SPARSE)]
    assert written.holes == [512 + 1024, 512 + 6000, 512 + 6500, 512 + 10000]


@pytest.mark.parametrize("text", [b"0\n", b"1\n%d\n0\n" % (10 << 20)])
def test_a_hole_at_the_end_is_part_of_the_file(engine: Engine, spool: int, text: bytes) -> None:
    written = write(engine, spool, sparse_10(text, 10 << 20, b"") + END)
    assert (os.fstat(spool).st_size, written.holes, written.blocks) == (10 << 20, [0, 10 << 20], 0)


def test_payload_beyond_maximum_file_size_is_an_error(engine: Engine, spool: int) -> None:
    scanner = engine.scanner()
    writer = engine.payload(scanner.entries, spool)
    data = sparse_10(b"0\n", 1 << 62, b"") * 3
    scanner.feed(data)
    assert writer.write(data, scanner.spans) == errno.EFBIG


def test_failure_names_the_entry(engine: Engine, spool: int) -> None:
    scanner = engine.scanner()
    full = os.open("/dev/full", os.O_WRONLY)
    writer = engine.payload(scanner.entries, full)
    data = archive([folder("d"), file("d/a", b"x")])
    scanner.feed(data)
    assert writer.write(data, scanner.spans) == errno.ENOSPC
    assert writer.failed == 1
    os.close(full)
