"""Directories that no output replaces, whatever the user says: homes, mounts, the cache, the current directory."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from fastpull.errors import printable

if TYPE_CHECKING:
    from fastpull.sinks.output.walk import OutputPlace

_DIRECTORY_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Inode:
    """What a path names, whatever its other names are.

    Attributes:
        device: of its filesystem.
        number: on it.
    """

    device: int
    number: int

    @classmethod
    def of(cls, state: os.stat_result) -> Self:
        """The inode that a state is of."""
        return cls(state.st_dev, state.st_ino)


def protection_of(place: OutputPlace, state: os.stat_result | None, keep_out: Sequence[str]) -> str:
    """Why an output must not be made at a place; empty if it may.

    Args:
        place: of the output.
        state: of the directory that is there; None if there is none.
        keep_out: directories that an output neither replaces nor contains nor is put into: the cache.
    """
    inode = None if state is None else Inode.of(state)
    for path in keep_out:
        if reason := _clash(place, inode, path):
            return reason
    if state is None or inode is None:
        return ""
    return _mounts(place.path) or _current(place.path, inode) or _home(place.path, state)


def _clash(place: OutputPlace, inode: Inode | None, other: str) -> str:
    shown, path = printable(os.fsencode(other)), os.path.realpath(os.fsencode(other))
    inside = f"this is in the cache ({shown}), choose another place"
    around = f"the cache ({shown}) is in it, choose another place for one of them"
    if place.path == path:
        return "this is the cache, choose another place"
    if place.path.startswith(path + b"/"):
        return inside
    if path.startswith(place.path + b"/"):
        return around
    # the same directories may have several paths, such as bind mounts
    above_cache = list(_upwards(path))
    if not above_cache:
        return ""
    if above_cache[0] in _upwards(f"/proc/self/fd/{place.directory_fd}"):
        return inside
    if inode is None or inode not in above_cache:
        return ""
    return "this is the cache, choose another place" if inode == above_cache[0] else around


def _mounts(path: bytes) -> str:
    for point in mount_points():
        if point == path:
            return "a mount point cannot be replaced, choose a directory in it"
        if point.startswith(path + b"/"):
            return f"{printable(point)} is mounted in it, unmount that first"
    return ""


def _current(path: bytes, inode: Inode) -> str:
    with contextlib.suppress(FileNotFoundError):  # it was removed
        if os.path.join(os.getcwdb(), b"").startswith(path + b"/") or inode in _upwards("."):
            return "the current directory cannot be replaced, choose one in it"
    return ""


def _home(path: bytes, state: os.stat_result) -> str:
    for name, home in _homes(state.st_uid):
        if home == path:
            return f"the home directory of {name} cannot be replaced, choose a directory in it"
        if home.startswith(path + b"/"):
            return f"the home directory of {name} is in it, choose another place"
    return ""


def _homes(owner: int) -> Iterator[tuple[str, bytes]]:
    """Homes as the users' database has them; those of this user and of a directory's owner also without links.

    The others are not looked at: on some sites that mounts each of them.
    """
    for user in pwd.getpwall():
        if user.pw_dir.startswith("/"):
            yield printable(os.fsencode(user.pw_name)), os.fsencode(os.path.normpath(user.pw_dir))
    for number in {os.geteuid(), owner}:
        with contextlib.suppress(KeyError):
            user = pwd.getpwuid(number)
            yield printable(os.fsencode(user.pw_name)), os.path.realpath(os.fsencode(user.pw_dir))
    if os.path.isabs(os.environ.get("HOME", "")):
        yield "this user", os.path.realpath(os.fsencode(os.environ["HOME"]))


def _upwards(path: str | bytes) -> Iterator[Inode]:
    """A directory and those above it, up to the root or to where this user may not go; none if it is not there."""
    try:
        fd = os.open(path, _DIRECTORY_FLAGS)
    except OSError:
        return
    try:
        found = None
        while found != (inode := Inode.of(os.fstat(fd))):
            yield (found := inode)
            above = os.open("..", _DIRECTORY_FLAGS, dir_fd=fd)
            os.close(fd)
            fd = above
    except OSError:
        return
    finally:
        os.close(fd)


def mount_points() -> list[bytes]:
    """Where filesystems are mounted, as this process sees it."""
    with open("/proc/self/mountinfo", "rb") as file:
        fields = [line.split(b" ", 5)[4] for line in file]
    return [re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field) for field in fields]
