"""Compare a directory with the expected tree, and remove it."""

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
    """Compare a directory with the image's expected tree.

    Args:
        root: the directory's path.
        image: the pulled image.
        owners_kept: whether owners, setuid bits and devices are kept, as ``--owner keep`` does.

    Returns:
        A line for each difference.
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
                wrong.append(f"{path!r}: unexpected")
    return wrong


def remove_tree(root: str) -> None:
    """Remove a pulled directory, whatever modes it holds.

    Raises:
        OutputError: the directory cannot be removed.
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
        return [f"is not a {what.type.name.lower()}"]
    found = []
    mode = what.mode if owners_kept else what.mode & 0o1777
    if what.type is not EntryType.SYMLINK and stat.S_IMODE(state.st_mode) != mode:
        found.append(f"mode {stat.S_IMODE(state.st_mode):o}, not {mode:o}")
    if what.type is EntryType.SYMLINK and os.readlink(path) != what.content:
        found.append(f"points to {os.readlink(path)!r}, not {what.content!r}")
    if what.type is EntryType.FILE:
        with open(path, "rb") as file:
            if file.read() != what.content:
                found.append("has other content")
        if state.st_nlink != what.links:
            found.append(f"has {state.st_nlink} names, not {what.links}")
    for name, value in what.xattrs:
        try:
            if os.getxattr(path, name) != value:
                found.append(f"has another value of {name!r}")
        except OSError as error:
            if error.errno != 95:  # a filesystem without extended attributes
                found.append(f"has no {name!r}")
    return found
