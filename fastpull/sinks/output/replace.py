"""The rules for replacing an existing output.

::

    path ─ find_place ─> OutputPlace ─ inspect ─> ExistingOutput ─ check_directory / check_file ─> error, or nothing

All sinks and all files beside an output follow these rules.
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

_SHOWN = 3  # names of entries in a message
_BUNDLE = {b"config.json", b"rootfs"}


@dataclass(frozen=True, slots=True)
class ReplaceRules:
    """What a directory output may replace.

    Attributes:
        force: a directory that fastpull made, or that holds a root filesystem.
        foreign: together with ``force``, any directory that is not protected.
    """

    force: bool = False
    foreign: bool = False


class FileKind(Enum):
    """The kind of an existing output."""

    NOTHING = auto()
    DIRECTORY = auto()
    FILE = auto()
    SPECIAL = auto()


@dataclass(frozen=True, slots=True)
class ExistingOutput:
    """What exists at the path of an output.

    Attributes:
        kind: kind of the inode, or nothing.
        inode: its identity; None if nothing exists.
        protection: why the path must not become an output; empty if it may.
        entries: sorted names of the entries of a directory.
        is_rootfs: whether the directory was made by fastpull or holds a root filesystem.
    """

    kind: FileKind
    inode: Inode | None = None
    protection: str = ""
    entries: tuple[bytes, ...] = ()
    is_rootfs: bool = False


def inspect(place: OutputPlace, keep_out: Sequence[str] = ()) -> ExistingOutput:
    """Return what exists at the path of an output.

    Args:
        place: location of the output.
        keep_out: directories that the output must not replace, contain or be in.

    Raises:
        OSError: an existing directory cannot be read.
    """
    if not place.name:
        return ExistingOutput(FileKind.DIRECTORY, protection="the root directory cannot be an output")
    try:
        state = os.stat(place.name, dir_fd=place.directory_fd, follow_symlinks=False)
    except FileNotFoundError:
        return ExistingOutput(FileKind.NOTHING, protection=protection_of(place, None, keep_out))
    if not stat.S_ISDIR(state.st_mode):
        kind = FileKind.FILE if stat.S_ISREG(state.st_mode) else FileKind.SPECIAL
        return ExistingOutput(kind, Inode.of(state), protection_of(place, None, keep_out))
    if protection := protection_of(place, state, keep_out):
        return ExistingOutput(FileKind.DIRECTORY, Inode.of(state), protection)
    fd = os.open(place.name, DIRECTORY_FLAGS, dir_fd=place.directory_fd)
    try:
        entries = tuple(sorted(map(os.fsencode, os.listdir(fd))))
        is_rootfs = bool(entries) and (is_marked(fd) or looks_like_rootfs(fd, entries))
        return ExistingOutput(FileKind.DIRECTORY, Inode.of(os.fstat(fd)), entries=entries, is_rootfs=is_rootfs)
    finally:
        os.close(fd)


@contextlib.contextmanager
def held_inode(place: OutputPlace) -> Iterator[Inode | None]:
    """Yield the inode at the path of an output, and prevent the reuse of its number during the context.

    Raises:
        OSError: the inode cannot be opened.
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
    """Return whether a directory without a marker is a root filesystem or an OCI bundle.

    A root filesystem has directories ``etc`` and ``usr`` and an entry ``bin``. A bundle has ``config.json``, ``rootfs``
    and nothing else. `/usr/local` and prefixes of ``make install`` and conda have no ``usr``.

    Args:
        fd: open directory.
        entries: names of its entries.
    """
    if set(entries) == _BUNDLE:
        return _is_directory(fd, b"rootfs")
    return b"bin" in entries and _is_directory(fd, b"etc") and _is_directory(fd, b"usr")


def check_directory(found: ExistingOutput, rules: ReplaceRules, shown: str) -> None:
    """Check that a directory may replace the existing output.

    Args:
        found: the existing output.
        rules: what the output may replace.
        shown: path of the output, for messages.

    Raises:
        OutputExists: ``--force``, or ``--force --replace-foreign``, is needed.
        OutputError: the existing output is never replaced.
    """
    if found.kind is FileKind.FILE:
        reason = "a directory does not replace a file, choose another path or remove the file"
        raise OutputError(shown, reason, errno.ENOTDIR)
    if found.kind is FileKind.SPECIAL:
        reason = "the existing output is neither a directory nor a regular file and is never replaced, "
        raise OutputError(shown, reason + "choose another path", errno.ENOTDIR)
    if found.protection:
        raise OutputError(shown, found.protection, errno.EBUSY)
    if not found.entries or (rules.force and (found.is_rootfs or rules.foreign)):
        return
    if found.is_rootfs:
        raise OutputExists(shown, "directory not empty", errno.ENOTEMPTY)
    raise OutputExists(
        shown,
        f"fastpull did not make this directory; replacing it would remove {_in_words(found.entries)}",
        errno.ENOTEMPTY,
        "Choose another path, or remove all of that with --force --replace-foreign",
    )


def check_file(found: ExistingOutput, *, force: bool, shown: str) -> None:
    """Check that a file may replace the existing output.

    Args:
        found: the existing output.
        force: whether a regular file is replaced.
        shown: path of the output, for messages.

    Raises:
        OutputExists: ``--force`` is needed.
        OutputError: the existing output is never replaced.
    """
    if found.kind is FileKind.SPECIAL:
        raise OutputError(shown, "the existing output is not a regular file, choose another path", errno.EEXIST)
    if found.protection:
        raise OutputError(shown, found.protection, errno.EBUSY)
    if found.kind is FileKind.DIRECTORY:
        raise OutputError(shown, "a directory exists, choose another path or remove the directory", errno.EISDIR)
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
