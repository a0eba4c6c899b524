"""System calls that Python's library lacks: one contract for both engines."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

from fastpull.native import _native
from fastpull.native.pure import system

ENGINES = [pytest.param(_native, id="native"), pytest.param(system, id="reference")]


@pytest.mark.parametrize("engine", ENGINES)
def test_give_back_changes_no_other_range(engine: ModuleType, tmp_path: Path) -> None:
    content = os.urandom(1 << 20)
    path = tmp_path / "file"
    path.write_bytes(content)
    fd = os.open(path, os.O_RDWR)
    engine.give_back(fd, 5000, 500_000)
    os.close(fd)
    found = path.read_bytes()
    assert found[:5000] == content[:5000]
    assert found[505_000:] == content[505_000:]
    assert found[5000:505_000] in (bytes(500_000), content[5000:505_000])


@pytest.mark.parametrize("engine", ENGINES)
def test_unsupported_give_back_is_no_error(engine: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    engine.give_back(fd, 0, 7)
    os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"content"


def test_given_back_range_takes_no_space(tmp_path: Path) -> None:
    fd = os.memfd_create("file")  # in memory, where every kernel can
    os.write(fd, b"x" * (1 << 20))
    before = os.fstat(fd).st_blocks
    _native.give_back(fd, 0, 1 << 19)
    after = os.fstat(fd)
    os.close(fd)
    assert after.st_blocks <= before // 2
    assert after.st_size == 1 << 20
