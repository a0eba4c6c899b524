"""The rules for replacing an existing output."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastpull.errors import OutputError, OutputExists
from fastpull.sinks.output.directory_staging import DirectoryStaging
from fastpull.sinks.output.file_staging import FileStaging
from fastpull.sinks.output.marker import Label, OutputIdentity, write_marker
from fastpull.sinks.output.protected import Inode, mount_points
from fastpull.sinks.output.replace import (
    ExistingOutput,
    FileKind,
    ReplaceRules,
    check_directory,
    check_file,
    inspect,
    looks_like_rootfs,
)
from fastpull.sinks.output.walk import find_place

SOME = Inode(1, 2)
NO_RULES, FORCE, FOREIGN = ReplaceRules(), ReplaceRules(force=True), ReplaceRules(foreign=True)
BOTH = ReplaceRules(force=True, foreign=True)
LABEL = Label(OutputIdentity("sha256:" + "0" * 64, "linux/amd64", {}), 1)


# --- the rules


def directory(*entries: bytes, **facts: bool) -> ExistingOutput:
    return ExistingOutput(FileKind.DIRECTORY, SOME, entries=entries, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize("rules", [NO_RULES, FORCE, FOREIGN, BOTH])
def test_directory_replaces_only_what_rules_allow(rules: ReplaceRules) -> None:
    def outcome(present: ExistingOutput) -> type[OutputError] | None:
        try:
            check_directory(present, rules, "out")
        except OutputError as error:
            assert ("--force" in str(error)) == isinstance(error, OutputExists), "advised only where it helps"
            assert ("--replace-foreign" in str(error)) == (bool(present.entries) and not present.is_rootfs)
            return type(error)
        return None

    assert outcome(ExistingOutput(FileKind.NOTHING)) is None
    assert outcome(directory()) is None
    assert outcome(directory(b"a", is_rootfs=True)) is (None if rules.force else OutputExists)
    assert outcome(directory(b"a")) is (None if rules == BOTH else OutputExists)
    for kind in (FileKind.FILE, FileKind.SPECIAL):
        assert outcome(ExistingOutput(kind, SOME)) is OutputError
    for present in (ExistingOutput(FileKind.NOTHING, protection="no"), directory()):
        guarded = ExistingOutput(present.kind, present.inode, "no")
        assert outcome(guarded) is OutputError


@pytest.mark.parametrize("force", [False, True])
def test_file_replaces_only_regular_file_with_force(force: bool) -> None:
    def outcome(present: ExistingOutput) -> type[OutputError] | None:
        try:
            check_file(present, force=force, shown="out")
        except OutputError as error:
            assert ("--force" in str(error)) == isinstance(error, OutputExists), "advised only where it helps"
            return type(error)
        return None

    assert outcome(ExistingOutput(FileKind.NOTHING)) is None
    assert outcome(ExistingOutput(FileKind.FILE, SOME)) is (None if force else OutputExists)
    for kind in (FileKind.DIRECTORY, FileKind.SPECIAL):
        assert outcome(ExistingOutput(kind, SOME)) is OutputError
    for kind in (FileKind.NOTHING, FileKind.FILE):
        assert outcome(ExistingOutput(kind, protection="no")) is OutputError


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([b"a"], "1 entry (a)"),
        ([b"a", b"b"], "2 entries (a, b)"),
        ([b"%d" % n for n in range(9)], "9 entries (0, 1, 2, …)"),
        ([b"\x1b[2J\xff", b"x\ny"], r"2 entries (\x1b[2J\xff, x\ny)"),
    ],
)
def test_error_names_entries_that_would_be_removed(names: list[bytes], words: str) -> None:
    with pytest.raises(OutputExists) as caught:
        check_directory(directory(*names), FORCE, "out")
    assert words in str(caught.value)


# --- what is there


@contextlib.contextmanager
def seen(path: Path | str, *keep_out: Path | str) -> Iterator[ExistingOutput]:
    place = find_place(os.fsencode(path))
    try:
        yield inspect(place, [str(other) for other in keep_out])
    finally:
        os.close(place.directory_fd)


def protection(path: Path | str, *keep_out: Path | str) -> str:
    with seen(path, *keep_out) as present:
        return present.protection


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


SPECIAL: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": make_socket,
    "device": lambda path: os.mknod(path, 0o20666, os.makedev(1, 3)),
}


@pytest.mark.parametrize("kind", ["fifo", "socket", pytest.param("device", marks=pytest.mark.root)])
def test_special_files_are_never_replaced_or_opened(tmp_path: Path, kind: str) -> None:
    SPECIAL[kind](tmp_path / "out")
    (tmp_path / "link").symlink_to("out")
    before = os.lstat(tmp_path / "out")
    for name in ("out", "link"):
        directory, file = DirectoryStaging(tmp_path / name, BOTH), FileStaging(tmp_path / name, force=True)
        for staging in (directory, file):
            with pytest.raises(OutputError, match="never replaced|not a regular file") as caught:
                staging.create()
            assert "--force" not in str(caught.value)
            staging.remove()
    assert os.path.samestat(before, os.lstat(tmp_path / "out"))
    assert sorted(os.listdir(tmp_path)) == ["link", "out"]


@pytest.mark.parametrize(
    ("folders", "files", "expected"),
    [
        (["etc", "usr", "bin"], [], True),
        (["etc", "usr"], ["bin"], True),  # or a link
        (["etc", "usr", "bin", "home", "proc"], ["x"], True),
        (["etc", "bin", "lib", "share"], [], False),  # /usr/local, a prefix of make install or conda
        (["usr", "bin"], [], False),
        (["usr", "bin"], ["etc"], False),
        (["rootfs"], ["config.json"], True),
        (["rootfs"], ["config.json", "notes"], False),
        ([], ["config.json", "rootfs"], False),
        (["Documents"], [".bashrc"], False),
    ],
)
def test_root_filesystem_is_recognised_by_its_directories(
    tmp_path: Path, folders: list[str], files: list[str], expected: bool
) -> None:
    for name in folders:
        (tmp_path / name).mkdir()
    for name in files:
        (tmp_path / name).touch()
    fd = os.open(tmp_path, os.O_RDONLY)
    assert looks_like_rootfs(fd, sorted(map(os.fsencode, folders + files))) == expected
    os.close(fd)


def test_marked_directory_is_recognised_and_its_copy_is_not(tmp_path: Path) -> None:
    for name in ("out", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").touch()
    fd = os.open(tmp_path / "out", os.O_RDONLY)
    write_marker(fd, LABEL, synced=False)
    os.close(fd)
    with seen(tmp_path / "out") as present:
        assert present.is_rootfs
    os.setxattr(tmp_path / "other", "user.fastpull.image", os.getxattr(tmp_path / "out", "user.fastpull.image"))
    with seen(tmp_path / "other") as present:
        assert not present.is_rootfs


# --- what is never replaced


def test_ordinary_directory_is_not_protected(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "cache").mkdir()
    assert protection(tmp_path / "out", tmp_path / "cache") == ""
    assert protection(tmp_path / "new", tmp_path / "cache", tmp_path / "not there") == ""
    assert protection(tmp_path / "cache-2", tmp_path / "cache") == ""


def test_root_directory_is_protected() -> None:
    assert "root directory" in protection("/")


@pytest.mark.parametrize("user", [None, "nobody-there"])
def test_homes_and_their_ancestors_are_protected(
    tmp_path: Path, user: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "homes/me"
    home.mkdir(parents=True)
    (tmp_path / "link").symlink_to("homes/me")
    if user is None:
        monkeypatch.setenv("HOME", str(tmp_path / "link"))
    else:
        entry = pwd.struct_passwd((user, "x", 4711, 4711, "", str(home), "/bin/sh"))
        monkeypatch.setattr(pwd, "getpwall", lambda: [entry])
    who = user or "this user"
    assert f"the home directory of {who} cannot be replaced" in protection(home)
    assert f"the home directory of {who} cannot be replaced" in protection(tmp_path / "link")
    assert f"the home directory of {who}" in protection(tmp_path / "homes")
    assert protection(home / "rootfs") == ""
    (home / "rootfs").mkdir()
    assert protection(home / "rootfs") == ""


@pytest.mark.root
def test_home_of_directory_owner_is_protected_under_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user database cannot be listed, as on sites with a directory service."""
    home = tmp_path / "export/user"
    home.mkdir(parents=True)
    (tmp_path / "home").symlink_to("export")
    os.chown(home, 4711, 4711)
    entry = pwd.struct_passwd(("someone", "x", 4711, 4711, "", str(tmp_path / "home/user"), "/bin/sh"))
    getpwuid = pwd.getpwuid
    monkeypatch.setattr(pwd, "getpwall", list)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry if uid == 4711 else getpwuid(uid))
    assert "the home directory of someone" in protection(home)


def test_current_directory_and_its_ancestors_are_protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    for path in (tmp_path / "a/b", tmp_path / "a", ".", "..", tmp_path):
        assert "current directory" in protection(path)
    assert protection(tmp_path / "a/b/c") == ""


@contextlib.contextmanager
def bound(source: Path, target: Path) -> Iterator[None]:
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", source, target], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", target], check=True)


@pytest.mark.root
def test_mount_points_and_their_ancestors_are_protected(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    with bound(tmp_path / "disk", tmp_path / "a/b c"):
        assert os.fsencode(tmp_path / "a/b c") in mount_points()
        assert "a mount point cannot be replaced" in protection(tmp_path / "a/b c"), "also of the same filesystem"
        assert "a/b c is mounted in it" in protection(tmp_path / "a")
        assert protection(tmp_path / "disk") == ""


@pytest.mark.parametrize(
    ("output", "cache", "words"),
    [
        ("x", "x", "would replace the cache"),
        ("x/new", "x", "would be in the cache"),
        ("x/v1/blobs/new", "x", "would be in the cache"),
        ("x", "x/y/cache", "would contain the cache"),
        ("to-x", "x", "would replace the cache"),
        ("to-x/new", "x", "would be in the cache"),
        ("x", "to-x", "would replace the cache"),
        ("x/new", "to-x", "would be in the cache"),
        ("x", "to-x/y", "would contain the cache"),
        ("to-x", "x/not/there", "would contain the cache"),
    ],
)
def test_output_never_replaces_contains_or_enters_cache(tmp_path: Path, output: str, cache: str, words: str) -> None:
    for name in ("x/v1/blobs", "x/y/cache"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "to-x").symlink_to("x")
    pattern = pytest.raises(OutputError, match=words)
    staging = DirectoryStaging(tmp_path / output, BOTH)
    with pattern as caught:
        staging.create([str(tmp_path / cache)])
    staging.remove()
    assert caught.value.errno == errno.EBUSY
    assert "--force" not in str(caught.value)
    if "be in the cache" in words:
        file = FileStaging(tmp_path / output, force=True)
        with pytest.raises(OutputError, match=words):
            file.create([str(tmp_path / cache)])
        file.remove()
    assert sorted(os.listdir(tmp_path / "x")) == ["v1", "y"]


@pytest.mark.root
def test_cache_is_protected_under_path_of_bind_mount(tmp_path: Path) -> None:
    (tmp_path / "cache/v1").mkdir(parents=True)
    with bound(tmp_path / "cache", tmp_path / "other"):
        assert "be in the cache" in protection(tmp_path / "other/new", tmp_path / "cache")
        assert "be in the cache" in protection(tmp_path / "cache/new", tmp_path / "other")
        assert "would replace the cache" in protection(tmp_path / "cache", tmp_path / "other")
    with bound(tmp_path, tmp_path / "cache/v1"):
        assert "be in the cache" in protection(tmp_path / "cache/v1/new", tmp_path / "cache")
