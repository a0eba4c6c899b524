"""The fingerprint of a whole file, by as many threads as there are."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future

import xxhash

_PART = 16 << 20
_PIECE = 1 << 20
_AHEAD = 64  # parts that are given out at a time


def file_fingerprint(fd: int, pool: Executor, check: Callable[[], None]) -> str:
    """XXH3-128 of the XXH3-128 of each 16 MiB of a file, and of its size, in hexadecimal.

    It covers every byte of the file as a reader would get it; the parts are hashed side by side, since a file of
    10 GB would take one core some two seconds.

    Args:
        fd: of the file.
        pool: hashes.
        check: called often; raises if nobody wants the result any more.

    Raises:
        OSError: the file cannot be read.
    """
    size = os.fstat(fd).st_size
    hasher = xxhash.xxh3_128(size.to_bytes(8, "little"))
    pending: deque[Future[bytes]] = deque()
    for start in range(0, size, _PART):
        pending.append(pool.submit(_part, fd, start, min(start + _PART, size)))
        if len(pending) == _AHEAD:
            check()
            hasher.update(pending.popleft().result())
    for future in pending:
        check()
        hasher.update(future.result())
    return hasher.hexdigest()


def _part(fd: int, start: int, stop: int) -> bytes:
    hasher, buffer = xxhash.xxh3_128(), bytearray(_PIECE)
    view = memoryview(buffer)
    while start < stop:
        got = os.preadv(fd, [view[: stop - start]], start)
        if not got:
            raise OSError(errno.EIO, "a file is shorter than what was written to it")
        hasher.update(view[:got])
        start += got
    return bytes(hasher.digest())
