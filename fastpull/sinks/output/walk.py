"""The way to an output: component by component, so that links which others may have put there are not followed.

The kernel has the same rule (``fs.protected_symlinks``), but not on every machine, and not for paths that a program
resolves by itself.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass

from fastpull.errors import OutputError, printable

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40  # as in the kernel
_NOBODY = 65534  # in a user namespace every user that it does not map
_DESCRIPTORS = re.compile(rb"/proc/[0-9]+/fd")


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """Where an output is, or will be.

    Attributes:
        directory_fd: the directory that it is in, open for listing; the caller closes it.
        name: in that directory; empty for the root directory.
        path: absolute, without symbolic links.
    """

    directory_fd: int
    name: bytes
    path: bytes


def may_follow(link: os.stat_result, folder: os.stat_result, user: int) -> bool:
    """Whether a symbolic link may be followed.

    In a directory that everybody may write to it has to belong to the user or to the directory's owner.

    Args:
        link: state of the link.
        folder: state of the directory that it is in.
        user: who follows.
    """
    if not folder.st_mode & stat.S_IWOTH or link.st_uid == user:
        return True
    return link.st_uid == folder.st_uid != _NOBODY


def find_place(given: bytes) -> OutputPlace:
    """Finds the directory of an output and its name in it, whether it exists or not.

    Args:
        given: path, as the user wrote it; links are followed, also the last one, where `may_follow` says so.

    Raises:
        OutputError: the directory does not exist, or a link must not be followed.
        OSError: the system refuses.
    """
    is_absolute = given.startswith(b"/")
    fd = os.open("/" if is_absolute else ".", _STEP)
    here, links = b"/" if is_absolute else os.getcwdb(), 0
    pending = [part for part in reversed(given.split(b"/")) if part not in (b"", b".")]
    try:
        while pending:
            part = pending.pop()
            path = os.path.dirname(here) if part == b".." else os.path.join(here, part)
            target = None if part == b".." else _target(fd, part, path)
            if target is not None and not _DESCRIPTORS.fullmatch(here):
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fsdecode(given))
                pending += [part for part in reversed(target.split(b"/")) if part not in (b"", b".")]
                if target.startswith(b"/"):
                    fd, here = _enter(fd, b"/", b"/"), b"/"
                continue
            if not pending and target is None and part != b"..":
                return OutputPlace(_listable(fd, here), part, path)
            # the link of a descriptor leads to what is open there, whatever its path is by now
            fd, here = _enter(fd, part, path, follow=target is not None), path if target is None else target
        name = os.path.basename(here)
        if name:
            fd = _enter(fd, b"..", os.path.dirname(here))
        return OutputPlace(_listable(fd, here), name, here)
    finally:
        os.close(fd)


def _target(directory_fd: int, name: bytes, path: bytes) -> bytes | None:
    """Where a link leads; None for what is not a link."""
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    except FileNotFoundError:
        return None
    try:
        link = os.fstat(fd)
        if not stat.S_ISLNK(link.st_mode):
            return None
        if not may_follow(link, os.fstat(directory_fd), os.geteuid()):
            reason = "a symbolic link of another user, in a directory that everybody may write to, is not followed"
            raise OutputError(printable(path), reason, errno.EACCES)
        return os.readlink(b"", dir_fd=fd)
    finally:
        os.close(fd)


def _enter(fd: int, name: bytes, path: bytes, *, follow: bool = False) -> int:
    """Opens a directory inside another one, which is closed."""
    try:
        inner = os.open(name, _STEP & ~os.O_NOFOLLOW if follow else _STEP, dir_fd=fd)
    except FileNotFoundError as error:
        raise OutputError(printable(path), "no such directory, make it first", errno.ENOENT) from error
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fsdecode(path)) from error
    os.close(fd)
    return inner


def _listable(fd: int, path: bytes) -> int:
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fsdecode(path)) from error
