"""The path of an output, and the private names beside it for its stagings."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastpull.cache.maintenance.stagings import STAGING_MARK, remove_stale, staging_pattern
from fastpull.errors import printable
from fastpull.sinks.output.marker import Marker, read_marker
from fastpull.sinks.output.walk import OutputPlace, find_place

if TYPE_CHECKING:
    from fastpull.cache.maintenance.stagings import StagingRecords

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_NAME = 200  # bytes of the destination's name in a staging's name, which may have 255


class Destination:
    """The path of an output.

    Args:
        path: path as the caller gave it; symbolic links are followed where `fastpull.sinks.output.walk.may_follow`
            allows it.

    Attributes:
        path: absolute path; after `open` without symbolic links.
        parent, name: directory and last component of `path`.
        staging_prefix: common prefix of the names of stagings beside the output.
        shown: path as the caller gave it, for messages.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._given = os.fsencode(path)
        self.shown = printable(self._given)
        self._set_path(os.path.abspath(self._given))

    def open(self) -> OutputPlace:
        """Open the directory of the output.

        Raises:
            OutputError: the directory does not exist, or a symbolic link on the way must not be followed.
            OSError: the directory cannot be opened.
        """
        place = find_place(self._given)
        self._set_path(place.path)
        return place

    def read_marker(self, is_kind: Callable[[int], bool]) -> Marker | None:
        """Return the marker of the existing output; None if it is of another kind or has no valid marker.

        Args:
            is_kind: test of a mode, such as `stat.S_ISREG`.
        """
        try:
            place = self.open()
        except OSError:
            return None  # creating the staging fails for the same reason and reports it
        fd = -1
        try:
            mode = os.stat(place.name, dir_fd=place.directory_fd, follow_symlinks=False).st_mode
            if not is_kind(mode):
                return None
            fd = os.open(place.name, _READ, dir_fd=place.directory_fd)
            return read_marker(fd)
        except OSError:
            return None
        finally:
            os.close(place.directory_fd)
            if fd >= 0:
                os.close(fd)

    def _set_path(self, path: bytes) -> None:
        self.path = path
        self.parent, self.name = os.path.split(path)
        self.staging_prefix = b".%s%s" % (self.name[:_MAX_NAME], STAGING_MARK)

    def staging_name(self) -> bytes:
        """Return a new random name for a staging."""
        return self.staging_prefix + secrets.token_hex(4).encode()

    def remove_stale(self, parent_fd: int) -> None:
        """Remove this user's stagings of killed pulls, as far as possible."""
        remove_stale(parent_fd, staging_pattern(self.staging_prefix))


def record_staging(records: StagingRecords, path: str) -> str | None:
    """Record the path of an output's staging in the cache.

    Args:
        records: records of the cache.
        path: path of the output as a sink has it.

    Returns:
        The name of the record; None for standard output and for a path that cannot be opened.
    """
    if path == "-":
        return None
    destination = Destination(path)
    try:
        place = destination.open()
    except OSError:
        return None  # the sink fails for the same reason and reports it
    os.close(place.directory_fd)
    return records.add(destination.parent, destination.staging_prefix)


def lock_staging(fd: int) -> bool:
    """Lock a new staging while it is open; return False if another pull has removed it as stale before."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # on a filesystem without locks no staging is removed as stale
    return os.fstat(fd).st_nlink > 0


def free_space(path: int | bytes) -> int:
    """Return the bytes that this user may still write to the filesystem of a path or descriptor."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
