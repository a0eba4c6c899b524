"""The native stage's system calls, as far as Python's library has them."""

from __future__ import annotations

import errno
import os
import shutil


def start_writeback(_fd: int, _offset: int, _size: int) -> None:
    """Does nothing: the kernel writes back in its own time."""


def give_back(_fd: int, _offset: int, _size: int) -> None:
    """Does nothing: the range keeps its place until its file is closed."""


def sync_filesystem(_fd: int) -> int:
    """Wait until every filesystem is on its disk."""
    os.sync()
    return 0


def exchange(_old_dir: int, _old: bytes, _new_dir: int, _new: bytes) -> int:
    """Says that the filesystem cannot swap names."""
    return errno.ENOSYS


def remove_tree(directory: int, name: bytes) -> int:
    """Remove a name and everything below it, never following a link; return 0 or an errno."""

    def open_up(_function: object, path: str, _error: object) -> None:
        for each in (os.path.dirname(path), path):
            fd = os.open(each, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                os.chmod(f"/proc/self/fd/{fd}", 0o700)
            finally:
                os.close(fd)
        shutil.rmtree(path)

    where = os.fsencode(f"/proc/self/fd/{directory}/") + name
    try:
        if _has_mounts(os.path.realpath(where)):
            return errno.EBUSY
        if os.path.isdir(where) and not os.path.islink(where):
            shutil.rmtree(os.fsdecode(where), onerror=open_up)
        elif os.path.lexists(where):
            os.unlink(name, dir_fd=directory)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _has_mounts(path: bytes) -> bool:
    for plain in b"\\ \t\n":  # as the kernel escapes them
        path = path.replace(bytes([plain]), b"\\%03o" % plain)
    with open("/proc/self/mountinfo", "rb") as file:
        return any(line.split(b" ", 5)[4].startswith(path + b"/") for line in file)
