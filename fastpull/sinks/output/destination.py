"""Where an output will be, and the private names beside it under which it is made."""

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
_MAX_NAME = 200  # of the destination's name in that of its staging: names have 255 bytes


class Destination:
    """The path of an output.

    Beside it stagings are made, ``.NAME.fastpull-…``, each locked as long as its process lives.

    Args:
        path: as it was given; symbolic links are followed where `fastpull.sinks.output.walk.may_follow` says so.

    Attributes:
        path: without symbolic links, once it was opened.
        parent, name: its two parts.
        staging_prefix: that names of its stagings begin with.
        shown: as it was given, for messages.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._given = os.fsencode(path)
        self.shown = printable(self._given)
        self._set_path(os.path.abspath(self._given))

    def open(self) -> OutputPlace:
        """Opens the directory in which the output will be.

        Raises:
            OutputError: there is none, or the path leads through a link that is not followed.
            OSError: it cannot be opened.
        """
        place = find_place(self._given)
        self._set_path(place.path)
        return place

    def read_marker(self, is_kind: Callable[[int], bool]) -> Marker | None:
        """The marker of what is there; None if nothing of a kind is, or it has none that can be believed.

        Args:
            is_kind: says of a mode whether it is of that kind, such as `stat.S_ISREG`.
        """
        try:
            place = self.open()
        except OSError:
            return None  # why, is said by who wants to make the output
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
        """A name beside the destination that nobody else has."""
        return self.staging_prefix + secrets.token_hex(4).encode()

    def remove_stale(self, parent_fd: int) -> None:
        """Removes this user's stagings of pulls that were killed; what cannot be removed stays."""
        remove_stale(parent_fd, staging_pattern(self.staging_prefix))


def note_staging(records: StagingRecords, path: object) -> str | None:
    """Record where the staging of an output will be; None where that is not known, or there is none.

    Args:
        records: of the cache.
        path: of the output, as a sink has it.
    """
    if not isinstance(path, str | os.PathLike) or path == "-":
        return None
    destination = Destination(path)
    try:
        place = destination.open()
    except OSError:
        return None  # why, is said by the sink
    os.close(place.directory_fd)
    return records.add(destination.parent, destination.staging_prefix)


def lock_staging(fd: int) -> bool:
    """Locks a staging that was just made, as long as it is open; False if it was taken for stale before that."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a filesystem without locks: nobody there takes anything for stale
    return os.fstat(fd).st_nlink > 0


def free_space(place: int | bytes) -> int:
    """Bytes that this user may still write to the filesystem of a path or descriptor."""
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize
