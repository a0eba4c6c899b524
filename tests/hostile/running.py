"""Run recipes into each kind of output, and read the results."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fastpull.errors import FastpullError
from fastpull.layers.index import LayerIndex
from fastpull.layers.merge import merge
from fastpull.layers.tree import Tree as FileTree
from fastpull.native.layer_scanner import LayerScanner
from fastpull.oci.digest import Digest
from fastpull.sinks.base import Resources, Sink
from fastpull.sinks.directory.sink import Directory
from fastpull.sinks.squashfs.sink import Squashfs
from fastpull.sinks.tar.sink import Tar
from tests.hostile.recipe import CANARY, AttackRecipe, RecipeRefused, Tree
from tests.support.trees import FoundEntry, look

NOTHING = Digest.of(b"")
CHUNK = 32 << 10
SINKS: dict[str, Callable[[Path], Sink]] = {"directory": Directory, "squashfs": Squashfs, "tar": Tar}
Overlay = Callable[[FileTree, Sink], None]
"""Adds entries on top of an image in a sink."""

_USUAL = {"d": 0o755}
_MAX_SHOWN = 100
_SHORTEST_TIME, _LONGEST_TIME = -(1 << 31), 15_032_385_535  # range of ext4


def make_canary(folder: Path) -> Path:
    """Create the canary: files, links and directories that recipes target and must not change."""
    canary = folder / "canary"
    (canary / "folder").mkdir(parents=True)
    (canary / "file").write_text("precious")
    (canary / "folder/inner").write_text("precious, too")
    (canary / "link").symlink_to("file")
    (canary / "file").chmod(0o640)
    (canary / "folder").chmod(0o750)
    for path in (canary / "file", canary / "folder", canary):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    return canary


def state_of(canary: Path) -> dict[bytes, FoundEntry]:
    """Return the state of a canary."""
    return look(canary, directory_times=True)


def no_overlay(_tree: FileTree, _sink: Sink) -> None:
    """Add no entries on top of an image."""


def write(sink: Sink, tars: list[bytes], resources: Resources, overlay: Overlay = no_overlay) -> None:
    """Stream layers into a sink, concurrently where the resources allow it."""
    try:
        sink.begin(resources)

        def stream(number: int) -> LayerIndex:
            scanner = LayerScanner(f"layer {number}")
            writer = sink.layer(number, number, scanner.entries, None)
            try:
                for at in range(0, len(tars[number]), CHUNK):
                    chunk = tars[number][at : at + CHUNK]
                    writer.write(chunk, scanner.feed(chunk))
                scanner.finish()
                writer.finish()
            finally:
                writer.close()
            return scanner.index(NOTHING, NOTHING, len(tars[number]))

        with ThreadPoolExecutor(resources.layers) as threads:
            indexes = list(threads.map(stream, range(len(tars))))
        tree = merge(indexes)
        overlay(tree, sink)
        sink.commit(tree)
    finally:
        sink.abort()


def outcome(
    recipe: AttackRecipe, kind: str, folder: Path, canary: Path, workers: int, overlay: Overlay = no_overlay
) -> FastpullError | None:
    """Run a recipe into ``folder/out``, return its error, and assert that no other file remains."""
    tars = recipe.tars(os.fsencode(canary)[1:])
    error = None
    try:
        write(SINKS[kind](folder / "out"), tars, Resources(workers, min(workers, 2)), overlay)
    except FastpullError as raised:
        error = raised
    left = os.listdir(folder)
    assert left == ([] if error else ["out"]), f"unexpected files beside the output: {left}, after {error!r}"
    return error


def check_refusal(error: FastpullError | None, expected: RecipeRefused) -> None:
    """Assert that an error has the expected class, reason and culprit."""
    assert error is not None, "the recipe was not refused"
    assert type(error) is expected.error, repr(error)
    assert expected.reason in str(error), str(error)
    assert expected.culprit in str(error), str(error)


# --- the content of an output, in the notation of recipes


@dataclass
class Seen:
    """An entry of an output."""

    kind: str
    content: str
    mode: int
    uid: int
    gid: int
    mtime: int
    xattrs: tuple[tuple[bytes, bytes], ...]
    inode: object
    """Identity of the inode, equal for hard links."""

    def words(self) -> str:
        told = [f"{self.mode:o}"] if self.mode != _USUAL.get(self.kind, 0o644) and self.kind != "l" else []
        told += [f"{name}={value}" for name in ("uid", "gid", "mtime") if (value := getattr(self, name))]
        told += [f"{_text(name)}={_value(name, value)}" for name, value in self.xattrs]
        words = self.kind if self.kind in "dp" else f"{self.kind} {self.content}"
        return f"{words} [{' '.join(told)}]" if told else words


def expected_words(tree: Tree, canary: bytes, kind: str) -> dict[bytes, str]:
    """Return a recipe's tree with all parent directories, and with times clamped to the range of the output."""
    found = {b"": "d"}
    aimed = {
        os.fsencode(path).replace(CANARY, canary).strip(b"/"): words.replace(CANARY.decode(), os.fsdecode(canary))
        for path, words in tree.items()
    }
    for path in aimed:
        parts = path.split(b"/")
        for count in range(1, len(parts)):
            found.setdefault(b"/".join(parts[:count]), "d")
    return {**found, **{path: _with_time(words, kind) for path, words in aimed.items()}}


def read_output(path: Path, kind: str, can_be_extracted: bool = True) -> dict[bytes, str]:
    """Return the content of an output in the notation of recipes; only paths if no program can extract it."""
    if kind == "tar":
        return _in_words(_look_at_tar(path), kind)
    if kind == "squashfs":
        tree = path.with_name("tree")
        if not can_be_extracted:
            return dict.fromkeys(_listed(path), "")
        done = subprocess.run(
            ["unsquashfs", "-no-progress", "-quiet", "-strict-errors", "-dest", tree, path],
            check=False,
            capture_output=True,
        )
        assert (done.returncode, done.stderr) == (0, b""), done
        path = tree
    return _in_words(look_at_directory(path), kind)


def _listed(image: Path) -> list[bytes]:
    done = subprocess.run(["unsquashfs", "-no-progress", "-dest", "", "-ls", image], check=True, capture_output=True)
    return [line.strip(b"/") for line in done.stdout.splitlines()]


def look_at_directory(root: Path) -> dict[bytes, Seen]:
    """Return all entries of a directory at any depth, read through descriptors."""
    found: dict[bytes, Seen] = {}

    def visit(fd: int, path: bytes) -> None:
        found[path] = _seen(fd, b"", "d")
        for name in sorted(os.listdir(fd)):
            raw = os.fsencode(name)
            below = path + b"/" + raw if path else raw
            if stat.S_ISDIR(os.stat(raw, dir_fd=fd, follow_symlinks=False).st_mode):
                inner = os.open(raw, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                visit(inner, below)
                os.close(inner)
            else:
                found[below] = _seen(fd, raw)

    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        visit(fd, b"")
    finally:
        os.close(fd)
    return found


def _seen(fd: int, name: bytes, kind: str = "") -> Seen:
    state = os.stat(name, dir_fd=fd, follow_symlinks=False) if name else os.fstat(fd)
    kind = kind or stat.filemode(state.st_mode)[0].replace("-", "f")
    place = os.fsencode(f"/proc/self/fd/{fd}/") + name
    content = ""
    if kind == "l":
        content = _text(os.readlink(name, dir_fd=fd))
    elif kind == "f":
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=fd), "rb") as file:
            content = _content(file.read(_MAX_SHOWN), state.st_size)
    elif kind in "bc":
        content = f"{os.major(state.st_rdev)}:{os.minor(state.st_rdev)}"
    xattrs = tuple(
        (os.fsencode(one), os.getxattr(place, one, follow_symlinks=not name))
        for one in sorted(os.listxattr(place, follow_symlinks=not name))
    )
    mode, inode = stat.S_IMODE(state.st_mode), state.st_ino
    return Seen(kind, content, mode, state.st_uid, state.st_gid, state.st_mtime_ns // 10**9, xattrs, inode)


_TAR_KINDS = {
    tarfile.REGTYPE: "f",
    tarfile.SYMTYPE: "l",
    tarfile.DIRTYPE: "d",
    tarfile.FIFOTYPE: "p",
    tarfile.CHRTYPE: "c",
    tarfile.BLKTYPE: "b",
}


def _look_at_tar(path: Path) -> dict[bytes, Seen]:
    found = {b"": Seen("d", "", 0o755, 0, 0, 0, (), b"")}
    with tarfile.open(path, encoding="utf-8", errors="surrogateescape") as opened:
        for member in opened:
            name = os.fsencode(member.name)
            name = b"" if name == b"." else name
            if member.islnk():
                found[name] = found[os.fsencode(member.linkname)]
                continue
            kind, content = _TAR_KINDS[member.type], ""
            if kind == "l":
                content = _text(os.fsencode(member.linkname))
            elif kind == "f":
                file = opened.extractfile(member)
                assert file is not None
                content = _content(file.read(_MAX_SHOWN), member.size)
            elif kind in "bc":
                content = f"{member.devmajor}:{member.devminor}"
            mtime = int(member.pax_headers.get("mtime", int(member.mtime)))
            prefix = "SCHILY.xattr."
            xattrs = tuple(
                (os.fsencode(key.removeprefix(prefix)), os.fsencode(value))
                for key, value in sorted(member.pax_headers.items())
                if key.startswith(prefix)
            )
            found[name] = Seen(kind, content, member.mode, member.uid, member.gid, mtime, xattrs, name)
    return found


def _in_words(found: dict[bytes, Seen], kind: str) -> dict[bytes, str]:
    first: dict[object, bytes] = {}
    words = {}
    for path, seen in sorted(found.items()):
        name = first.setdefault((seen.inode, "d" if seen.kind == "d" else ""), path)
        words[path] = _with_time(seen.words(), kind) if name == path or seen.kind == "d" else f"= {_text(name)}"
    return words


def _with_time(words: str, kind: str) -> str:
    """Clamp a time to the range of an output: 32 bits for squashfs, that of the filesystem for a directory."""
    low, high = {"squashfs": (0, (1 << 32) - 1), "directory": (_SHORTEST_TIME, _LONGEST_TIME)}.get(kind, (None, None))
    match = re.search(r" ?mtime=(-?\d+)", words)
    if match is None or low is None or high is None:
        return words
    kept = min(max(int(match[1]), low), high)
    told = f"{match[0].partition('=')[0]}={kept}" if kept else ""
    return (words[: match.start()] + told + words[match.end() :]).replace(" []", "")


def _content(start: bytes, size: int) -> str:
    return _text(start) if size <= _MAX_SHOWN else f"{size} bytes"


def _value(name: bytes, value: bytes) -> str:
    return repr(value) if name == b"security.capability" else _text(value)


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)
