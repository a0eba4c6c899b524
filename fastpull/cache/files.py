"""What all parts of the cache do with files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from fastpull.errors import CacheError, FastpullError, from_os_error


@contextlib.contextmanager
def cache_errors() -> Iterator[None]:
    """Makes ours of what the system says about the cache."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FastpullError):
            raise
        raise from_os_error(CacheError, error) from error


def sync_directory(path: str) -> None:
    """Waits until the names in a directory are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
