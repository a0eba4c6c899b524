"""The time that a filesystem has: clocks of nodes differ, and are never compared with each other."""

from __future__ import annotations

import os
import secrets


def filesystem_time(folder: str) -> float:
    """When a file is made in a directory now, in seconds since the epoch.

    Raises:
        OSError: none can be made.
    """
    path = os.path.join(folder, f".{secrets.token_hex(16)}")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.unlink(path)
        return os.fstat(fd).st_mtime
    finally:
        os.close(fd)
