"""Reading the members of a tar archive in place."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastpull.errors import MalformedDocument
from fastpull.sources.archive import Archive

FORMATS: tuple[Literal[0, 1, 2], ...] = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
SIZES = st.one_of(
    st.integers(0, 2000),
    st.sampled_from([511, 512, 513, 65024, 65025, 65535, 65536, 65537, 130_560, 131_072]),
    st.integers(60_000, 140_000),
)


def opened(path: Path) -> Archive:
    return Archive(str(path), os.open(path, os.O_RDONLY))


@given(
    st.sampled_from(FORMATS),
    st.lists(st.tuples(st.text("abcdefghäé", min_size=1, max_size=120), SIZES), max_size=12, unique_by=lambda x: x[0]),
)
@settings(max_examples=60, deadline=None)
def test_members_match_those_of_the_standard_library(
    tmp_path_factory: pytest.TempPathFactory, form: int, members: list[tuple[str, int]]
) -> None:
    path = tmp_path_factory.mktemp("archive") / "a.tar"
    members = [(name[:60], size) for name, size in members] if form == tarfile.USTAR_FORMAT else members
    names = [name for name, _ in members]
    with tarfile.open(path, "w", format=form) as tar:
        for number, (name, size) in enumerate(members):
            info = tarfile.TarInfo(name)
            info.size = size
            tar.addfile(info, io.BytesIO(bytes([number]) * size))
    archive = opened(path)
    try:
        for number, (name, size) in enumerate(members):
            if names.count(name) > 1:
                with pytest.raises(MalformedDocument, match="repeated"):
                    archive.open(name)
                continue
            with archive.open(name) as extent:
                assert extent.size == size
                assert extent.read(size + 1) == bytes([number]) * size
    finally:
        archive.close()


@pytest.mark.parametrize("form", FORMATS[1:], ids=["gnu", "pax"])
def test_content_between_headers_is_not_read(
    tmp_path: Path, form: Literal[1, 2], monkeypatch: pytest.MonkeyPatch
) -> None:
    size, path = (20 << 30) + 5, tmp_path / "large.tar"
    info = tarfile.TarInfo("large")
    info.size = size
    small = tarfile.TarInfo("small")
    small.size = 4
    with open(path, "wb") as file:
        file.write(info.tobuf(form))
        file.seek(size + -size % 512, os.SEEK_CUR)
        file.write(small.tobuf(form) + b"body".ljust(512, b"\0") + bytes(1024))
    read, pread = [], os.pread

    def counted(fd: int, count: int, offset: int) -> bytes:
        found = pread(fd, count, offset)
        read.append(len(found))
        return found

    monkeypatch.setattr("fastpull.sources.archive.os.pread", counted)
    archive = opened(path)
    try:
        assert sum(read) < 1 << 20
        assert archive.open("small").read(10) == b"body"
        assert archive.open("large").size == size
    finally:
        archive.close()
