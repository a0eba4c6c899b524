"""Comparing a directory with what it has to be, and removing it."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from fastpull import native
from fastpull.errors import OutputError
from fastpull.layers.entry import EntryType

if TYPE_CHECKING:
    from fastpull.demo.image import DemoImage, Expected

_KINDS = {
    EntryType.FILE: stat.S_ISREG,
    EntryType.SYMLINK: stat.S_ISLNK,
    EntryType.DIRECTORY: stat.S_ISDIR,
    EntryType.FIFO: stat.S_ISFIFO,
    EntryType.CHAR: stat.S_ISCHR,
    EntryType.BLOCK: stat.S_ISBLK,
}


def check_tree(root: str, image: DemoImage, *, owners_kept: bool) -> list[str]:
    """Compares a directory with the image's expected tree.

    Args:
        root: of the directory.
        image: that was pulled into it.
        owners_kept: with owners, setuid bits and devices; else by the policy for those who are not root.

    Returns:
        What is wrong, a line for each; empty if nothing is.
    """
    base = os.fsencode(root)
    expected = dict(image.expected)
    if not owners_kept:
        expected = {path: what for path, what in expected.items() if what.type is not EntryType.CHAR}
    wrong = []
    for path, what in expected.items():
        try:
            wrong += [f"{path!r}: {problem}" for problem in _problems(os.path.join(base, path), what, owners_kept)]
        except FileNotFoundError:
            wrong.append(f"{path!r}: missing")
    for folder, folders, names in os.walk(base):
        for name in names + [name for name in folders if os.path.islink(os.path.join(folder, name))]:
            path = os.path.relpath(os.path.join(folder, name), base)
            if path not in expected:
                wrong.append(f"{path!r}: should not be there")
    return wrong


def remove_tree(root: str) -> None:
    """Removes a directory that was pulled, whatever modes are in it.

    Raises:
        OutputError: it cannot be removed.
    """
    folder, name = os.path.split(os.path.realpath(root))
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if number := native.remove_tree(fd, os.fsencode(name)):
            raise OutputError(root, os.strerror(number).lower(), number)
    finally:
        os.close(fd)


def _problems(path: bytes, what: Expected, owners_kept: bool) -> list[str]:
    state = os.lstat(path)
    if not _KINDS[what.type](state.st_mode):
        return [f"is no {what.type.name.lower()}"]
    found = []
    mode = what.mode if owners_kept else what.mode & 0o1777
    if what.type is not EntryType.SYMLINK and stat.S_IMODE(state.st_mode) != mode:
        found.append(f"mode {stat.S_IMODE(state.st_mode):o}, not {mode:o}")
    if what.type is EntryType.SYMLINK and os.readlink(path) != what.content:
        found.append(f"points to {os.readlink(path)!r}, not {what.content!r}")
    if what.type is EntryType.FILE:
        with open(path, "rb") as file:
            if file.read() != what.content:
                found.append("holds something else")
        if state.st_nlink != what.links:
            found.append(f"has {state.st_nlink} names, not {what.links}")
    for name, value in what.xattrs:
        try:
            if os.getxattr(path, name) != value:
                found.append(f"has another {name!r}")
        except OSError as error:
            if error.errno != 95:  # a filesystem without extended attributes
                found.append(f"has no {name!r}")
    return found
