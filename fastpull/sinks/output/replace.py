"""What an output may replace: the rules, and the look at what is there.

::

    path ─ find_place ─> place ─ look ─> PresentOutput ─ check_directory / check_file ─> error, or nothing

All sinks and all files beside an output go through here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from fastpull.errors import OutputError, OutputExists, printable
from fastpull.sinks.output.marker import is_marked
from fastpull.sinks.output.paths import DIRECTORY_FLAGS
from fastpull.sinks.output.protected import Inode, protection_of

if TYPE_CHECKING:
    from fastpull.sinks.output.walk import OutputPlace

_SHOWN = 3  # names of what would go
_BUNDLE = {b"config.json", b"rootfs"}


@dataclass(frozen=True, slots=True)
class ReplaceRules:
    """What the user lets a directory replace.

    Attributes:
        force: a directory that fastpull made, or that holds a root filesystem.
        foreign: with ``force``, any other directory that is not protected.
    """

    force: bool = False
    foreign: bool = False


class FileKind(Enum):
    """What is at a path."""

    NOTHING = auto()
    DIRECTORY = auto()
    FILE = auto()
    SPECIAL = auto()


@dataclass(frozen=True, slots=True)
class PresentOutput:
    """What is where an output is to be.

    Attributes:
        kind: of it.
        inode: of it; None if there is nothing.
        protection: why there cannot be an output here; empty if there can.
        entries: names in a directory, sorted.
        is_rootfs: the directory was made by fastpull, or holds a root filesystem.
    """

    kind: FileKind
    inode: Inode | None = None
    protection: str = ""
    entries: tuple[bytes, ...] = ()
    is_rootfs: bool = False


def look(place: OutputPlace, keep_out: Sequence[str] = ()) -> PresentOutput:
    """Looks at what is at a place.

    Args:
        place: of the output.
        keep_out: directories that an output neither replaces nor contains nor is put into.

    Raises:
        OSError: a directory that is there cannot be read.
    """
    if not place.name:
        return PresentOutput(FileKind.DIRECTORY, protection="the root directory cannot be an output")
    try:
        state = os.stat(place.name, dir_fd=place.directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return PresentOutput(FileKind.NOTHING, protection=protection_of(place, None, keep_out))
    if not stat.S_ISDIR(state.st_mode):
        kind = FileKind.FILE if stat.S_ISREG(state.st_mode) else FileKind.SPECIAL
        return PresentOutput(kind, Inode.of(state), protection_of(place, None, keep_out))
    if protection := protection_of(place, state, keep_out):
        return PresentOutput(FileKind.DIRECTORY, Inode.of(state), protection)
    fd = os.open(place.name, DIRECTORY_FLAGS, dir_fd=place.directory_fd)
    try:
        entries = tuple(sorted(map(os.fsencode, os.listdir(fd))))
        is_rootfs = bool(entries) and (is_marked(fd) or looks_like_rootfs(fd, entries))
        return PresentOutput(FileKind.DIRECTORY, Inode.of(os.fstat(fd)), entries=entries, is_rootfs=is_rootfs)
    finally:
        os.close(fd)


@contextlib.contextmanager
def held(place: OutputPlace) -> Iterator[Inode | None]:
    """The inode of what is at a place; while the context lasts its number does not become that of anything else.

    Raises:
        OSError: the system refuses.
    """
    try:
        fd = os.open(place.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.directory_fd)
    except FileNotFoundError:
        yield None
        return
    try:
        yield Inode.of(os.fstat(fd))
    finally:
        os.close(fd)


def looks_like_rootfs(fd: int, entries: Sequence[bytes]) -> bool:
    """Whether a directory without a marker is a root filesystem, or an OCI bundle.

    A root filesystem has directories ``etc`` and ``usr``, and a ``bin``; a bundle ``config.json``, ``rootfs`` and
    nothing else. `/usr/local`, and what ``make install`` and conda make, have no ``usr``.

    Args:
        fd: the directory.
        entries: the names in it.
    """
    if set(entries) == _BUNDLE:
        return _is_directory(fd, b"rootfs")
    return b"bin" in entries and _is_directory(fd, b"etc") and _is_directory(fd, b"usr")


def check_directory(found: PresentOutput, rules: ReplaceRules, shown: str) -> None:
    """Checks that a directory may take the place of what is there.

    Args:
        found: by `look`.
        rules: what the user allows.
        shown: the output, for messages.

    Raises:
        OutputExists: not without ``--force``, or ``--force --replace-foreign``.
        OutputError: never.
    """
    if found.kind is FileKind.FILE:
        raise OutputError(shown, "a directory does not replace a file, choose another name or remove it", errno.ENOTDIR)
    if found.kind is FileKind.SPECIAL:
        reason = "what is there is neither a directory nor a file and is never replaced, choose another name"
        raise OutputError(shown, reason, errno.ENOTDIR)
    if found.protection:
        raise OutputError(shown, found.protection, errno.EBUSY)
    if not found.entries or (rules.force and (found.is_rootfs or rules.foreign)):
        return
    if found.is_rootfs:
        raise OutputExists(shown, "directory not empty", errno.ENOTEMPTY)
    raise OutputExists(
        shown,
        f"fastpull has not made this directory, in which {_in_words(found.entries)} would go",
        errno.ENOTEMPTY,
        "Choose another; --force together with --replace-foreign removes all of that",
    )


def check_file(found: PresentOutput, *, force: bool, shown: str) -> None:
    """Checks that a file may take the place of what is there.

    Args:
        found: by `look`.
        force: replace a regular file.
        shown: the output, for messages.

    Raises:
        OutputExists: not without ``--force``.
        OutputError: never.
    """
    if found.kind is FileKind.SPECIAL:
        raise OutputError(shown, "what is there is not a regular file, choose another name", errno.EEXIST)
    if found.protection:
        raise OutputError(shown, found.protection, errno.EBUSY)
    if found.kind is FileKind.DIRECTORY:
        raise OutputError(shown, "a directory is there, choose another name or remove it", errno.EISDIR)
    if found.kind is FileKind.FILE and not force:
        raise OutputExists(shown, "file exists", errno.EEXIST)


def _is_directory(fd: int, name: bytes) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _in_words(entries: Sequence[bytes]) -> str:
    names = ", ".join(map(printable, entries[:_SHOWN]))
    if len(entries) == 1:
        return f"1 entry ({names})"
    return f"{len(entries)} entries ({names}{', …' if len(entries) > _SHOWN else ''})"
