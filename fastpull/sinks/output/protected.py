"""Protected directories, which no output replaces: homes, mount points, the cache, the current directory."""

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
    """The identity of a file or directory, whatever its path.

    Attributes:
        device: device number of its filesystem.
        number: inode number.
    """

    device: int
    number: int

    @classmethod
    def of(cls, state: os.stat_result) -> Self:
        """Return the inode of a state."""
        return cls(state.st_dev, state.st_ino)


def protection_of(place: OutputPlace, state: os.stat_result | None, keep_out: Sequence[str]) -> str:
    """Return why a path must not become an output; empty if it may.

    Args:
        place: location of the output.
        state: state of the existing directory; None if there is none.
        keep_out: directories that an output must not replace, contain or be in: the cache.
    """
    inode = None if state is None else Inode.of(state)
    for path in keep_out:
        if reason := _clash(place, inode, path):
            return reason
    if state is None or inode is None:
        return ""
    return _mounts(place.path) or _current(place.path, inode) or _home(place.path, state)


def _clash(place: OutputPlace, inode: Inode | None, other: str) -> str:
    """Return how an output clashes with the cache."""
    shown, path = printable(os.fsencode(other)), os.path.realpath(os.fsencode(other))
    inside = f"the output would be in the cache ({shown}), choose another path"
    around = f"the output would contain the cache ({shown}), choose another path for one of them"
    same = "the output would replace the cache, choose another path"
    if place.path == path:
        return same
    if place.path.startswith(path + b"/"):
        return inside
    if path.startswith(place.path + b"/"):
        return around
    # bind mounts give the same directory several paths, so compare inodes as well
    above_cache = list(_upwards(path))
    if not above_cache:
        return ""
    if above_cache[0] in _upwards(f"/proc/self/fd/{place.directory_fd}"):
        return inside
    if inode is None or inode not in above_cache:
        return ""
    return same if inode == above_cache[0] else around


def _mounts(path: bytes) -> str:
    for point in mount_points():
        if point == path:
            return "a mount point cannot be replaced, choose a directory in it"
        if point.startswith(path + b"/"):
            return f"{printable(point)} is mounted in it, unmount that first"
    return ""


def _current(path: bytes, inode: Inode) -> str:
    with contextlib.suppress(FileNotFoundError):  # the current directory was removed
        if os.path.join(os.getcwdb(), b"").startswith(path + b"/") or inode in _upwards("."):
            return "the current directory cannot be replaced, choose one in it"
    return ""


def _home(path: bytes, state: os.stat_result) -> str:
    for name, home in _homes(state.st_uid):
        if home == path:
            return f"the home directory of {name} cannot be replaced, choose a directory in it"
        if home.startswith(path + b"/"):
            return f"it contains the home directory of {name}, choose another path"
    return ""


def _homes(owner: int) -> Iterator[tuple[str, bytes]]:
    """Yield name and home of all users; for this user and the directory's owner also without symbolic links.

    The homes of other users are not accessed, since some sites mount each home on access.
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
    """Yield the inodes of a directory and its ancestors, as far as they are accessible; none if it does not exist."""
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
    """Return the mount points of this process's mount namespace."""
    with open("/proc/self/mountinfo", "rb") as file:
        fields = [line.split(b" ", 5)[4] for line in file]
    return [re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field) for field in fields]
