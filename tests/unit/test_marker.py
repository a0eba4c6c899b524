"""Markers: their content, and when they are valid."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from fastpull.cache.blob_metadata import boot_id
from fastpull.sinks.output.marker import (
    MARKER_NAME,
    TREE_VERSION,
    Label,
    Marker,
    OutputIdentity,
    is_marked,
    is_valid,
    read_marker,
    write_marker,
)

IDENTITY = OutputIdentity("sha256:" + "a" * 64, "linux/amd64", {"format": "directory", "owner": "keep", "mtime": None})


def opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY)


def test_marker_round_trip() -> None:
    marker = Marker(IDENTITY, 5, 7, synced=True, size=3, mtime_ns=9, fingerprint="ab")
    assert Marker.from_bytes(marker.to_bytes()) == marker
    unknown = replace(marker, identity=replace(IDENTITY, recipe=None))
    assert Marker.from_bytes(unknown.to_bytes()) == unknown


def changed(**facts: Any) -> bytes:
    return json.dumps({**asdict(Marker(IDENTITY, 5, 7, synced=True)), **facts}).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"3",
        b"null",
        b"{}",
        pytest.param(b"[" * 100_000, id="deep"),
        changed(identity=None),
        changed(identity={}),
        changed(identity={"image": "x", "platform": "y", "recipe": 3}),
        changed(inode="5"),
        changed(inode=True),
        changed(synced=1),
        changed(more=1),
        changed(version=2),
        changed(boot=None),
    ],
)
def test_invalid_marker_is_none(content: bytes, tmp_path: Path) -> None:
    assert Marker.from_bytes(content) is None
    if len(content) < 4000:
        os.setxattr(tmp_path, MARKER_NAME, content)
        fd = opened(tmp_path)
        assert read_marker(fd) is None
        os.close(fd)


@given(
    st.binary(max_size=300)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode)
)
def test_reading_a_marker_never_fails(content: bytes) -> None:
    Marker.from_bytes(content)


def state_of(mode: int, uid: int, *, size: int = 3, mtime: int = 9) -> Any:
    class State:
        st_ino, st_mode, st_uid, st_size, st_mtime_ns = 5, mode, uid, size, mtime

    return State


DIR, FILE = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644


@pytest.mark.parametrize(
    ("facts", "state", "believed"),
    [
        ({}, state_of(DIR, 1), True),
        ({}, state_of(DIR, 0), True),  # root has every permission anyway
        ({}, state_of(DIR, 2), False),  # another user may have made it
        ({}, state_of(stat.S_IFDIR | 0o775, 1), False),  # group members may have changed it
        ({}, state_of(stat.S_IFDIR | 0o757, 1), False),
        ({"inode": 6}, state_of(DIR, 1), False),  # the marker of another inode
        ({"tree": TREE_VERSION + 1}, state_of(DIR, 1), False),
        ({"boot": "earlier"}, state_of(DIR, 1), False),  # a power failure may have damaged it
        ({"boot": "earlier", "synced": True}, state_of(DIR, 1), True),
        ({}, state_of(FILE, 1), True),
        ({}, state_of(FILE, 1, size=4), False),
        ({}, state_of(FILE, 1, mtime=8), False),
        ({"fingerprint": "x"}, state_of(FILE, 1, mtime=8), True),  # the file is read then
        ({"fingerprint": "x"}, state_of(FILE, 1, size=4), False),
    ],
)
def test_marker_is_valid_only_for_unchanged_trusted_output(facts: dict[str, Any], state: Any, believed: bool) -> None:
    marker = replace(Marker(IDENTITY, 5, 7, synced=False, boot="now", size=3, mtime_ns=9), **facts)
    assert is_valid(marker, state, 1, "now") == believed


def test_marker_of_directory_is_valid_only_for_that_directory(tmp_path: Path) -> None:
    fd = opened(tmp_path)
    assert read_marker(fd) is None
    assert not is_marked(fd)
    write_marker(fd, None, synced=False)
    assert os.listxattr(tmp_path) == []
    write_marker(fd, Label(IDENTITY, 3), synced=False)
    marker = read_marker(fd)
    assert marker is not None
    assert (marker.identity, marker.inodes, marker.boot, marker.size) == (IDENTITY, 3, boot_id(), 0)
    os.setxattr(fd, MARKER_NAME, replace(marker, version=99).to_bytes())
    assert is_marked(fd), "also if a later version made it"
    assert read_marker(fd) is None
    os.close(fd)


@pytest.mark.parametrize("is_known", [True, False])
def test_file_is_recognised_by_size_and_time_or_fingerprint(tmp_path: Path, is_known: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    fd = opened(path)
    fingerprint = xxhash.xxh3_64(b"content").hexdigest() if is_known else ""
    write_marker(fd, Label(IDENTITY, 3, fingerprint), synced=False)
    assert read_marker(fd) is not None
    os.utime(path, (1, 1))
    assert (read_marker(fd) is not None) == is_known
    path.write_bytes(b"another")
    assert read_marker(fd) is None
    path.write_bytes(b"longer content")
    assert read_marker(fd) is None
    os.close(fd)


def test_marker_that_cannot_be_stored_is_left_out(tmp_path: Path) -> None:
    fd = opened(tmp_path)
    write_marker(fd, Label(replace(IDENTITY, recipe={"source": "x" * 5000}), 3), synced=False)
    assert os.listxattr(tmp_path) == []
    os.close(fd)
    with open("/proc/self/status", "rb") as file:
        write_marker(file.fileno(), Label(IDENTITY, 3), synced=False)
