"""Finished images of the cache: from there to an output."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import xxhash

from fastpull.cache.images.store import open_image
from fastpull.concurrency.writes import pwrite_all

if TYPE_CHECKING:
    from fastpull.cache.images.store import FinishedImage
    from fastpull.sinks.output.file_staging import FileStaging

_FICLONE = 0x40049409  # linux/fs.h: the two files share their blocks until one is written to
_COPY = 1 << 20


def transfer(
    image: FinishedImage, staging: FileStaging, on_copied: Callable[[int], None], *, hard_link: bool
) -> Literal["linked", "cloned", "copied"] | None:
    """Fills a staging with a finished image.

    A clone costs nothing and is the user's own: writing to it leaves the cache's file as it is. A hard link would not,
    so it has to be asked for; where it cannot be made, on another filesystem or of another user's file, a clone or copy
    is. What is copied is hashed on the way, as every blob is that the cache gives.

    Args:
        image: with its seal.
        staging: created, and empty or not.
        on_copied: called often with the bytes copied so far; raises if the output is not wanted any more.
        hard_link: whether the output may be another name of the cache's file.

    Returns:
        How it was done; None if the cache's file is gone or damaged.

    Raises:
        OSError: the filesystem refuses.
    """
    source = open_image(image.path)
    if source is None:
        return None
    try:
        if hard_link and staging.become(source):
            return "linked"
        os.ftruncate(staging.fd, 0)
        with contextlib.suppress(OSError):
            fcntl.ioctl(staging.fd, _FICLONE, source)
            return "cloned"
        return "copied" if _copy(source, staging.fd, image.size, on_copied) == image.metadata.fingerprint else None
    finally:
        os.close(source)


def _copy(source: int, target: int, limit: int, on_copied: Callable[[int], None]) -> str:
    """Copies a file of ``limit`` bytes, and returns its fingerprint."""
    hasher, buffer, at = xxhash.xxh3_64(), bytearray(_COPY), 0
    view = memoryview(buffer)
    while at < limit and (size := os.preadv(source, [view[: limit - at]], at)):
        on_copied(at)
        hasher.update(view[:size])
        at = pwrite_all(target, at, [view[:size]])
    return hasher.hexdigest()
