"""The staging of a file output."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from fastpull import native
from fastpull.errors import OutputError, OutputExists
from fastpull.sinks.base import Resources
from fastpull.sinks.directory.sink import Directory
from fastpull.sinks.output import file_staging
from fastpull.sinks.output import staging as staging_module
from fastpull.sinks.output.file_staging import FileStaging


def staged(path: Path, content: bytes = b"new", *, force: bool = False) -> FileStaging:
    staging = FileStaging(path, force)
    try:
        staging.create()
        os.write(staging.fd, content)
    except BaseException:
        staging.remove()
        raise
    return staging


def refuse_links(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)


def test_published_file_is_complete_and_staging_is_gone(tmp_path: Path) -> None:
    staging = staged(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    staging.publish(sync=False)
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out").read_bytes() == b"new"
    assert os.stat(tmp_path / "out").st_nlink == 1
    assert (staging.fd, staging.parent_fd) == (-1, -1)


def test_new_file_has_mode_of_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        staged(tmp_path / "out").publish(sync=False)
    finally:
        os.umask(before)
    assert os.stat(tmp_path / "out").st_mode & 0o7777 == 0o640


def test_staged_file_is_readable_and_writable(tmp_path: Path) -> None:
    staging = staged(tmp_path / "out", b"abc")
    assert os.pread(staging.fd, 10, 1) == b"bc"
    staging.remove()


def test_existing_file_is_refused_before_staging(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"mine")
    with pytest.raises(OutputExists, match="--force"):
        staged(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_force_replaces_nothing_but_regular_files(tmp_path: Path, kind: str, force: bool) -> None:
    (os.mkdir if kind == "directory" else os.mkfifo)(tmp_path / "out")
    with pytest.raises(OutputError, match="directory exists" if kind == "directory" else "not a regular file"):
        staged(tmp_path / "out", force=force)
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("there", [True, False])
def test_force_replaces_a_file(tmp_path: Path, there: bool) -> None:
    if there:
        (tmp_path / "out").write_bytes(b"old")
    staged(tmp_path / "out", force=True).publish(sync=False)
    assert (tmp_path / "out").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("sync", [True, False])
def test_force_removes_replaced_file(tmp_path: Path, sync: bool) -> None:
    (tmp_path / "out").write_bytes(b"old")
    staged(tmp_path / "out", force=True).publish(sync)
    assert (tmp_path / "out").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.skipif("FASTPULL_NO_EXTENSIONS" in os.environ, reason="the Python reference cannot swap names")
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("links", [True, False])
def test_failed_sync_of_name_restores_previous_output(
    tmp_path: Path, there: bool, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there:
        (tmp_path / "out").write_bytes(b"old")
    if not links:
        refuse_links(errno.EPERM, monkeypatch)
    staging = staged(tmp_path / "out", force=there)

    def fail(fd: int) -> None:
        if fd == staging.parent_fd:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutputError, match="input/output error"):
        staging.publish(sync=True)
    staging.remove()
    assert os.listdir(tmp_path) == (["out"] if there else [])
    assert not there or (tmp_path / "out").read_bytes() == b"old"


@pytest.mark.parametrize("links", [True, False])
def test_output_created_during_pull_is_not_overwritten(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        refuse_links(errno.EPERM, monkeypatch)
    staging = staged(tmp_path / "out")
    (tmp_path / "out").write_bytes(b"theirs")
    with pytest.raises(OutputExists, match="has just created"):
        staging.publish(sync=False)
    staging.remove()
    assert (tmp_path / "out").read_bytes() == b"theirs"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_publish_works_without_hard_links(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_links(number, monkeypatch)
    staged(tmp_path / "out").publish(sync=False)
    assert (tmp_path / "out").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("comes", ["directory", "fifo"])
def test_force_does_not_replace_other_kind_created_during_pull(
    tmp_path: Path, comes: str, can_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_exchange:
        monkeypatch.setattr(staging_module, "exchange", lambda *_: errno.EINVAL)
    (tmp_path / "out").write_bytes(b"old")
    staging = staged(tmp_path / "out", force=True)
    (tmp_path / "out").unlink()
    (os.mkdir if comes == "directory" else os.mkfifo)(tmp_path / "out")
    with pytest.raises(OutputError, match="directory exists" if comes == "directory" else "not a regular file"):
        staging.publish(sync=False)
    staging.remove()
    assert os.listdir(tmp_path) == ["out"]
    assert not (tmp_path / "out").is_file()


@pytest.mark.skipif("FASTPULL_NO_EXTENSIONS" in os.environ, reason="the Python reference cannot swap names")
def test_output_created_at_publication_is_swapped_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = native.exchange

    def swap_first(*names: Any) -> int:
        if (tmp_path / "out").is_file():
            (tmp_path / "out").unlink()
            os.mkfifo(tmp_path / "out")
        return exchange(*names)

    (tmp_path / "out").write_bytes(b"old")
    monkeypatch.setattr(staging_module, "exchange", swap_first)
    staging = staged(tmp_path / "out", force=True)
    with pytest.raises(OutputExists, match="has just created"):
        staging.publish(sync=False)
    staging.remove()
    assert (tmp_path / "out").is_fifo()
    assert os.listdir(tmp_path) == ["out"]


def test_symlink_stays_and_its_target_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    os.symlink("real", tmp_path / "out")
    staged(tmp_path / "out", force=True).publish(sync=False)
    assert os.readlink(tmp_path / "out") == "real"
    assert (tmp_path / "real").read_bytes() == b"new"


def test_missing_parent_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no such directory, make it first"):
        staged(tmp_path / "no/out")


def test_remove_leaves_nothing_and_is_idempotent(tmp_path: Path) -> None:
    staging = staged(tmp_path / "out")
    staging.remove()
    staging.remove()
    assert os.listdir(tmp_path) == []
    staging.create()
    staging.publish(sync=False)
    assert os.listdir(tmp_path) == ["out"]


def test_stale_stagings_of_any_kind_are_removed_and_running_one_is_kept(
    tmp_path: Path,
) -> None:
    dead, dead_directory = staged(tmp_path / "out"), Directory(tmp_path / "out")
    dead_directory.begin(Resources())
    os.close(dead.fd)  # as the kernel does for a killed process
    os.close(dead_directory._staging.fd)
    running = staged(tmp_path / "out")
    stale = os.listdir(tmp_path)
    assert len(stale) == 1, "the dead ones are gone already"
    staged(tmp_path / "out").publish(sync=False)
    assert sorted(os.listdir(tmp_path)) == sorted([*stale, "out"])
    running.remove()
    dead.fd = dead_directory._staging.fd = -1
    dead.remove()
    dead_directory.abort()
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("sync", [True, False])
def test_sync_completes_before_name_is_published(tmp_path: Path, sync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    staging = staged(tmp_path / "out")
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append((fd == staging.parent_fd, (tmp_path / "out").exists())))
    staging.publish(sync)
    assert calls == ([(False, False), (True, True)] if sync else [])


def become(staging: FileStaging, path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        return staging.become(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("sync", [True, False])
def test_staging_can_become_hard_link(tmp_path: Path, force: bool, sync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    synced = []
    if force:
        (tmp_path / "out").write_bytes(b"old")
    staging = staged(tmp_path / "out", force=force)
    assert become(staging, tmp_path / "kept")
    running = staged(tmp_path / "out", force=True)  # removes unlocked stagings as stale
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    staging.publish(sync)
    running.remove()
    kept = os.stat(tmp_path / "kept")
    assert os.path.samestat(os.stat(tmp_path / "out"), kept)
    assert synced == ([kept.st_ino, os.stat(tmp_path).st_ino] if sync else [])
    assert sorted(os.listdir(tmp_path)) == ["kept", "out"]


@pytest.mark.skipif("FASTPULL_NO_EXTENSIONS" in os.environ, reason="the Python reference cannot swap names")
@pytest.mark.parametrize("there", [True, False])
def test_failed_sync_restores_previous_output_after_hard_link(
    tmp_path: Path, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    if there:
        (tmp_path / "out").write_bytes(b"old")
    staging = staged(tmp_path / "out", force=there)
    assert become(staging, tmp_path / "kept")

    def fail(fd: int) -> None:
        if fd == staging.parent_fd:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OutputError, match="input/output error"):
        staging.publish(sync=True)
    staging.remove()
    assert sorted(os.listdir(tmp_path)) == (["kept", "out"] if there else ["kept"])
    assert not there or (tmp_path / "out").read_bytes() == b"old"


@pytest.mark.parametrize("unnamed", [True, False])
def test_spool_files_have_no_name(tmp_path: Path, unnamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not unnamed:
        monkeypatch.setattr(
            file_staging, "_UNNAMED", os.O_RDONLY | os.O_DIRECTORY | os.O_CREAT
        )  # flags that the kernel refuses
    staging = staged(tmp_path / "out")
    before = os.listdir(tmp_path)
    fd = staging.open_spool()
    assert os.listdir(tmp_path) == before
    os.pwrite(fd, b"abc", 5)
    assert os.pread(fd, 10, 4) == b"\0abc"
    assert os.fstat(fd).st_dev == os.stat(tmp_path).st_dev
    os.close(fd)
    staging.remove()
