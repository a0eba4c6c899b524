"""The transfer of a finished image from the cache to an output."""

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

_FICLONE = 0x40049409  # linux/fs.h: the two files share their blocks until one of them is written
_COPY_SIZE = 1 << 20


def transfer(
    image: FinishedImage, staging: FileStaging, on_copied: Callable[[int], None], *, hard_link: bool
) -> Literal["linked", "cloned", "copied"] | None:
    """Fill a staging file with a finished image.

    A clone takes no space and belongs to the user: writing to it leaves the cached file unchanged. Writing to a hard
    link would change the cached file, so the user has to ask for one. Where no hard link can be made, on another
    filesystem or to another user's file, a clone or a copy is made. A copy is hashed on the way, like every blob that
    leaves the cache.

    Args:
        image: the finished image with its metadata.
        staging: the created staging file, with any content.
        on_copied: called often with the number of bytes copied; raises if the output is no longer wanted.
        hard_link: whether the output may be a hard link to the cached file.

    Returns:
        The method; None if the cached file is gone or damaged.

    Raises:
        OSError: the staging file cannot be written.
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
    """Copy at most ``limit`` bytes of a file, and return their fingerprint."""
    hasher, buffer, at = xxhash.xxh3_64(), bytearray(_COPY_SIZE), 0
    view = memoryview(buffer)
    while at < limit and (size := os.preadv(source, [view[: limit - at]], at)):
        on_copied(at)
        hasher.update(view[:size])
        at = pwrite_all(target, at, [view[:size]])
    return hasher.hexdigest()
