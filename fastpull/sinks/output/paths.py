"""Operations on paths below a directory descriptor, which never follow a symbolic link."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that open a directory."""


def spool_name(layer: int, entry: int) -> bytes:
    """Return the name of an entry's payload in the spool; the native file writer uses the same names."""
    return b"%d.%d" % (layer, entry)


@contextlib.contextmanager
def parent_of(root_fd: int, path: bytes) -> Iterator[tuple[int, bytes]]:
    """Open the parent directory of a path; yield its descriptor and the last component."""
    *parents, name = path.split(b"/")
    fd = os.dup(root_fd)
    try:
        for parent in parents:
            inner = os.open(parent, DIRECTORY_FLAGS, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd, name
    finally:
        os.close(fd)


def remove_file(root_fd: int, path: bytes) -> None:
    """Remove anything that is not a directory."""
    with parent_of(root_fd, path) as (fd, name):
        os.unlink(name, dir_fd=fd)


def move_file(root_fd: int, path: bytes, to_fd: int, to_name: bytes) -> None:
    """Move a file to another directory."""
    with parent_of(root_fd, path) as (fd, name):
        os.rename(name, to_name, src_dir_fd=fd, dst_dir_fd=to_fd)


@contextlib.contextmanager
def opened(fd: int, name: bytes) -> Iterator[str]:
    """Yield a path that keeps naming the same inode; devices and fifos are not opened for reading or writing."""
    inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    try:
        yield f"/proc/self/fd/{inner}"
    finally:
        os.close(inner)
