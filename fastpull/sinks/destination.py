"""Where an output will be, and the private names beside it under which it is made."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets

from fastpull.errors import OutputError, printable
from fastpull.tarstage import remove_tree

_MARK = b".fastpull-"
_MAX_NAME = 200  # of the destination's name in that of its staging: names have 255 bytes


class Destination:
    """The path of an output.

    Beside it stagings are made, ``.NAME.fastpull-…``, each locked as long as its process lives.

    Args:
        path: as it was given; symbolic links at its end are followed.

    Attributes:
        path: without symbolic links.
        parent, name: its two parts.
        shown: as it was given, for messages.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.realpath(os.fsencode(path))
        self.parent, self.name = os.path.split(self.path)
        self.shown = printable(os.fsencode(os.fspath(path)))
        self._prefix = b".%s%s" % (self.name[:_MAX_NAME], _MARK)
        self._pattern = re.compile(re.escape(self._prefix) + rb"[0-9a-f]{8}")

    def open_parent(self) -> int:
        """Opens the directory in which the output will be.

        Raises:
            OutputError: there is none.
            OSError: it cannot be opened.
        """
        if not self.name:
            raise OutputError(self.shown, "the root directory cannot be an output", errno.EBUSY)
        if not os.path.isdir(self.parent):
            raise OutputError(printable(self.parent), "no such directory, make it first", errno.ENOENT)
        return os.open(self.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def staging_name(self) -> bytes:
        """A name beside the destination that nobody else has."""
        return self._prefix + secrets.token_hex(4).encode()

    def remove_stale(self, parent_fd: int) -> None:
        """Removes this user's stagings of pulls that were killed; what cannot be removed stays."""
        for name in map(os.fsencode, os.listdir(parent_fd)):
            if self._pattern.fullmatch(name):
                with contextlib.suppress(OSError):
                    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent_fd)
                    try:
                        if os.fstat(fd).st_uid == os.geteuid():
                            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                            remove_tree(parent_fd, name)
                    finally:
                        os.close(fd)


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
