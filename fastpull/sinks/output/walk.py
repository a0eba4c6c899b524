"""The lookup of an output's path, component by component, which follows no symbolic link that others may have made.

The kernel has the same rule (``fs.protected_symlinks``), but not on every machine, and not for paths that a program
resolves itself.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from dataclasses import dataclass

from fastpull.errors import OutputError, printable
from fastpull.layers.path_walk import PathWalk, TooManySymlinks

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OVERFLOW_ID = 65534  # in a user namespace, the owner of everything whose owner is not mapped
_DESCRIPTORS = re.compile(rb"/proc/[0-9]+/fd")


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """The location of an output that may or may not exist.

    Attributes:
        directory_fd: directory of the output, open for reading; the caller closes it.
        name: name in the directory; empty for the root directory.
        path: absolute path without symbolic links.
    """

    directory_fd: int
    name: bytes
    path: bytes


def may_follow(link: os.stat_result, directory: os.stat_result, user: int) -> bool:
    """Return whether a symbolic link may be followed.

    A link in a world-writable directory must belong to the user or to the owner of the directory.

    Args:
        link: state of the link.
        directory: state of the directory that contains it.
        user: id of the user that follows the link.
    """
    if not directory.st_mode & stat.S_IWOTH or link.st_uid == user:
        return True
    return link.st_uid == directory.st_uid != _OVERFLOW_ID


def find_place(given: bytes) -> OutputPlace:
    """Open the directory of an output.

    Args:
        given: path as the caller gave it; symbolic links are followed, also the last one, where `may_follow` allows it.

    Raises:
        OutputError: the directory does not exist, or a symbolic link must not be followed.
        OSError: the directory cannot be opened.
    """
    is_absolute = given.startswith(b"/")
    fd = os.open("/" if is_absolute else ".", _STEP)
    here = b"/" if is_absolute else os.getcwdb()
    walk = PathWalk(given)
    try:
        for part in walk:
            path = os.path.dirname(here) if part == b".." else os.path.join(here, part)
            target = None if part == b".." else _target(fd, part, path)
            if target is not None and not _DESCRIPTORS.fullmatch(here):
                try:
                    restarts = walk.follow(target)
                except TooManySymlinks:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fsdecode(given)) from None
                if restarts:
                    fd, here = _enter(fd, b"/", b"/"), b"/"
                continue
            if walk.is_last and target is None and part != b"..":
                return OutputPlace(_listable(fd, here), part, path)
            # the kernel follows the link of a descriptor to what is open, even if its path has changed
            fd, here = _enter(fd, part, path, follow=target is not None), path if target is None else target
        name = os.path.basename(here)
        if name:
            fd = _enter(fd, b"..", os.path.dirname(here))
        return OutputPlace(_listable(fd, here), name, here)
    finally:
        os.close(fd)


def _target(directory_fd: int, name: bytes, path: bytes) -> bytes | None:
    """Return the target of a symbolic link; None for anything else."""
    try:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    except FileNotFoundError:
        return None
    try:
        link = os.fstat(fd)
        if not stat.S_ISLNK(link.st_mode):
            return None
        if not may_follow(link, os.fstat(directory_fd), os.geteuid()):
            reason = "a symbolic link of another user in a world-writable directory is not followed"
            raise OutputError(printable(path), reason, errno.EACCES)
        return os.readlink(b"", dir_fd=fd)
    finally:
        os.close(fd)


def _enter(fd: int, name: bytes, path: bytes, *, follow: bool = False) -> int:
    """Open a directory inside another one, and close the other one."""
    try:
        inner = os.open(name, _STEP & ~os.O_NOFOLLOW if follow else _STEP, dir_fd=fd)
    except FileNotFoundError as error:
        raise OutputError(printable(path), "no such directory, make it first", errno.ENOENT) from error
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fsdecode(path)) from error
    os.close(fd)
    return inner


def _listable(fd: int, path: bytes) -> int:
    """Open a directory for reading that is open for its path only."""
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fsdecode(path)) from error
