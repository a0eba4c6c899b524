"""The lookup of an output's path, and its symbolic links."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fastpull.errors import OutputError
from fastpull.sinks.output.destination import Destination
from fastpull.sinks.output.walk import find_place, may_follow

OTHER = 12345
STICKY, EVERYBODY_S, SHARED, PRIVATE = 0o1777, 0o777, 0o1775, 0o755


def state(mode: int, uid: int) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, uid, uid, 0, 0, 0, 0))


@pytest.mark.parametrize("mode", [STICKY, EVERYBODY_S, SHARED, PRIVATE])
@pytest.mark.parametrize(
    ("link", "folder", "user", "followed"),
    [
        (1, 0, 1, True),  # the user's own link
        (0, 0, 1, True),  # a link of the directory's owner, such as root in /tmp
        (2, 0, 1, False),
        (2, 0, 0, False),  # the rule holds for root, too
        (0, 2, 1, False),  # links of root are not trusted either: the rule of the kernel
        (2, 1, 1, False),
        (65534, 65534, 1, False),  # all unmapped users of a namespace have this id
    ],
)
def test_symlinks_of_others_are_not_followed_in_world_writable_directories(
    mode: int, link: int, folder: int, user: int, followed: bool
) -> None:
    got = may_follow(state(stat.S_IFLNK | 0o777, link), state(stat.S_IFDIR | mode, folder), user)
    assert got == (followed or not mode & stat.S_IWOTH)


def found(path: str | Path) -> tuple[str, str]:
    """Return the directory and the name that a path resolves to."""
    place = find_place(os.fsencode(path))
    try:
        folder = os.readlink(f"/proc/self/fd/{place.directory_fd}")
        assert os.fsencode(os.path.join(folder, os.fsdecode(place.name))) == place.path
        return folder, os.fsdecode(place.name)
    finally:
        os.close(place.directory_fd)


def test_path_resolves_as_in_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "a/file").touch()
    targets = {
        "to_b": "a/b",
        "absolute": f"{tmp_path}/a",
        "a/up": "..",
        "a/b/twice": "../../to_b/c",
        "dangling": "a/new",
        "a/loop": "loop",
        "to_file": "a/file",
        "slashes": "a//b/./",
    }
    for name, target in targets.items():
        (tmp_path / name).symlink_to(target)
    monkeypatch.chdir(tmp_path / "a")
    inside = ["out", "./out", "b", "b/", "b/../b/out", ".", "..", "../..", "file", "", "/", "//", "/proc/../etc"]
    links = ["to_b/out", "a/b/c/../../b/twice", "dangling", "to_file", "slashes/x", "to_b/..", "absolute/b/c/."]
    for path in (*inside, *(f"up/{link}" for link in links), f"{tmp_path}/absolute/b/c/."):
        assert os.path.join(*found(path)) == os.path.realpath(path), path
    with pytest.raises(OSError, match="Too many levels"):
        found("loop")
    for path in ("no/out", "up/no/such/out"):
        with pytest.raises(OutputError, match="no such directory, make it first: .*/no"):
            found(path)
    with pytest.raises(OSError, match="Not a directory"):
        found("file/out")


def test_descriptor_link_leads_to_open_directory(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    fd = os.open(tmp_path / "before", os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert found(f"/proc/self/fd/{fd}/out") == (str(tmp_path / "before"), "out")
        (tmp_path / "before").rename(tmp_path / "after")
        (tmp_path / "before").mkdir()
        place = find_place(os.fsencode(f"/proc/self/fd/{fd}/out"))
        assert os.path.samestat(os.fstat(place.directory_fd), os.stat(tmp_path / "after"))
        os.close(place.directory_fd)
    finally:
        os.close(fd)


def test_lookup_leaves_no_descriptor_open(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    before = os.listdir("/proc/self/fd")
    for path in ("file/x", "loop", "no/x", "loop/x"):
        with pytest.raises(OSError, match="."):
            find_place(os.fsencode(tmp_path / path))
    os.close(find_place(os.fsencode(tmp_path / "x")).directory_fd)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.root
@pytest.mark.parametrize("at", ["rootfs", "rootfs/", "way/out", "way/on/out"])
def test_symlink_of_other_user_in_sticky_directory_is_refused_and_target_untouched(tmp_path: Path, at: str) -> None:
    (tmp_path / "victim/on").mkdir(parents=True)
    (tmp_path / "victim/keep").touch()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(STICKY)
    for name in ("rootfs", "way"):
        (tmp_path / "shared" / name).symlink_to(tmp_path / "victim")
        os.lchown(tmp_path / "shared" / name, OTHER, OTHER)
    with pytest.raises(OutputError, match="a symbolic link of another user") as caught:
        found(f"{tmp_path}/shared/{at}")
    assert f"{tmp_path}/shared/{at.partition('/')[0]}" in str(caught.value)
    assert Destination(f"{tmp_path}/shared/{at}").read_marker(lambda _: True) is None
    for name in ("rootfs", "way"):
        os.lchown(tmp_path / "shared" / name, os.geteuid(), -1)
    found(f"{tmp_path}/shared/{at}")
