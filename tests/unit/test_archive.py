"""Tar headers as fastpull writes them, compared with Python's tarfile."""

from __future__ import annotations

import io
import tarfile

import pytest

from fastpull.layers.archive import BLOCK, archive, header_of
from fastpull.layers.entry import Entry, EntryType
from tests.support.engines import ENGINES, Engine, scan
from tests.support.layers import file, folder, symlink


def read(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        return opened.getmembers()


@pytest.mark.parametrize("engine", ENGINES, ids=repr)
@pytest.mark.parametrize("size", [99, 100, 101, 150, 155, 156, 200, 254, 255, 256, 257, 300])
@pytest.mark.parametrize("part", [1, 30, 99, 100, 101, 155, 156, 250])
def test_paths_of_any_length_are_read_as_they_were(engine: Engine, size: int, part: int) -> None:
    path = b"/".join([b"p" * part] * 300)[:size].rstrip(b"/")
    members = [file(path, b"x"), folder(path + b"d"), symlink("s", path)]
    members = [member for member in members if max(map(len, member[0].path.split(b"/"))) <= 255]
    data = archive(members)
    assert list(scan(engine, data).index) == [entry for entry, _ in members]
    found = [entry.name.encode() for entry in read(data)]
    assert found == [entry.path for entry, _ in members]


@pytest.mark.parametrize(
    ("path", "blocks"),
    [
        (b"n" * 100, 1),
        (b"p" * 155 + b"/" + b"n" * 100, 1),
        (b"p" * 156 + b"/" + b"n" * 99, 3),
        (b"p" * 154 + b"/" + b"n" * 101, 3),
        (b"n" * 101, 3),
    ],
)
def test_a_pax_header_is_written_only_where_ustar_does_not_suffice(path: bytes, blocks: int) -> None:
    assert len(header_of(Entry(path, EntryType.FILE))) == blocks * BLOCK


def test_a_directory_of_a_hundred_bytes_needs_a_prefix_for_its_slash() -> None:
    data = archive([folder("p/" + "n" * 98), folder("n" * 100)])
    assert [entry.name for entry in read(data)] == ["p/" + "n" * 98, "n" * 100]
    assert len(header_of(folder("p/" + "n" * 98)[0])) == BLOCK
    assert len(header_of(folder("n" * 100)[0])) == 3 * BLOCK


def test_numbers_that_do_not_fit_are_read_as_they_were() -> None:
    members = [
        file("uid", uid=8**7, gid=4_000_000_000),
        file("old", mtime=-12345),
        file("new", mtime=8**11),
        file("last", uid=8**7 - 1, gid=8**7 - 1, mtime=8**11 - 1),
    ]
    assert [(e.uid, e.gid, e.mtime) for e in read(archive(members))] == [(e.uid, e.gid, e.mtime) for e, _ in members]
    assert len(header_of(members[-1][0])) == BLOCK
    assert b"size=%d\n" % 8**11 in header_of(Entry(b"big", EntryType.FILE, size=8**11))
