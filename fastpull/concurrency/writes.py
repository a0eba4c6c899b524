"""Complete writes: the system may write less than it was given, takes so many pieces at a time, and keeps them."""

from __future__ import annotations

import os
from collections.abc import Sequence

_MAX_PIECES = os.sysconf("SC_IOV_MAX")


def pwrite_all(fd: int, offset: int, pieces: Sequence[bytes | memoryview]) -> int:
    """Writes consecutive pieces at a place in a file, and returns where they end.

    Raises:
        OSError: the filesystem refuses; how much was written is not known then.
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
    """Hands what was written to a file over to who stores it, so that other nodes see it, too.

    A network filesystem does that when a descriptor of the file is closed, and tells what it could not store
    (close-to-open consistency); others have nothing to do.

    Raises:
        OSError: it could not be stored.
    """
    os.close(os.dup(fd))
