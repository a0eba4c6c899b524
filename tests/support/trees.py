"""Snapshots of directories on disk."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass, replace

from fastpull.sinks.output.marker import MARKER_NAME


@dataclass(frozen=True)
class FoundEntry:
    """An entry at a path; directories have no time, because writes below them change it."""

    kind: str
    mode: int
    uid: int
    gid: int
    mtime_ns: int | None
    device: int
    content: str
    links: tuple[bytes, ...]
    xattrs: tuple[tuple[str, bytes], ...]


def look(root: str | os.PathLike[str], *, directory_times: bool = False) -> dict[bytes, FoundEntry]:
    """Return a directory and all entries below it by path, without fastpull's marker on the directory."""
    base = os.fsencode(os.fspath(root))
    states: dict[bytes, os.stat_result] = {}
    for where, folders, names in os.walk(base):
        for name in [b"", *folders, *names]:
            path = os.path.join(where, name).rstrip(b"/")
            states[os.path.relpath(path, base)] = os.lstat(path)
    names_of: dict[int, list[bytes]] = {}
    for path, state in states.items():
        if not stat.S_ISDIR(state.st_mode):
            names_of.setdefault(state.st_ino, []).append(path)
    found = {path: _found(os.path.join(base, path), state, names_of, directory_times) for path, state in states.items()}
    unmarked = tuple(xattr for xattr in found[b"."].xattrs if xattr[0] != MARKER_NAME)
    return {**found, b".": replace(found[b"."], xattrs=unmarked)}


def _found(path: bytes, state: os.stat_result, names_of: dict[int, list[bytes]], directory_times: bool) -> FoundEntry:
    is_directory = stat.S_ISDIR(state.st_mode)
    content = ""
    if stat.S_ISREG(state.st_mode):
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    elif stat.S_ISLNK(state.st_mode):
        content = repr(os.readlink(path))
    return FoundEntry(
        kind=stat.filemode(state.st_mode)[0],
        mode=stat.S_IMODE(state.st_mode),
        uid=state.st_uid,
        gid=state.st_gid,
        mtime_ns=state.st_mtime_ns if directory_times or not is_directory else None,
        device=state.st_rdev,
        content=content,
        links=() if is_directory else tuple(sorted(names_of[state.st_ino])),
        xattrs=tuple(sorted(_xattrs(path))),
    )


def _xattrs(path: bytes) -> list[tuple[str, bytes]]:
    try:
        found = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.ENOTSUP:  # the kernel's error for a squashfs image without any attributes
            raise
        return []
    return [(name, os.getxattr(path, name, follow_symlinks=False)) for name in found]


def as_fuse_shows(found: FoundEntry) -> FoundEntry:
    """Return the entries as squashfuse shows them: only user attributes, and a separate inode for each name."""
    return replace(found, links=(), xattrs=tuple(pair for pair in found.xattrs if pair[0].startswith("user.")))


def names(root: str | os.PathLike[str]) -> set[str]:
    """Return the paths of all entries below a directory."""
    return {os.fsdecode(path) for path in look(root)} - {"."}
