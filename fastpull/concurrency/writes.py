"""Complete writes: one system call may write less than requested, and accepts a limited number of pieces."""

from __future__ import annotations

import os
from collections.abc import Sequence

_MAX_PIECES = os.sysconf("SC_IOV_MAX")


def pwrite_all(fd: int, offset: int, pieces: Sequence[bytes | memoryview]) -> int:
    """Write consecutive pieces at an offset of a file; return the offset of their end.

    Raises:
        OSError: the write failed; how much was written is unknown.
    """
    pending = [memoryview(piece) for piece in pieces if len(piece)]
    while pending:
        written = os.pwritev(fd, pending[:_MAX_PIECES], offset)
        offset += written
        while pending and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if pending and written:
            pending[0] = pending[0][written:]
    return offset


def flush(fd: int) -> None:
    """Send the written data of a file to the server of a network filesystem, so that other nodes see it.

    A network filesystem does this when a descriptor of the file is closed, and then reports errors (close-to-open
    consistency). On other filesystems nothing happens.

    Raises:
        OSError: the server could not store the data.
    """
    os.close(os.dup(fd))
