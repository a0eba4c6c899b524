"""The fingerprint of a whole file, computed by several threads."""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future

import xxhash

_PART_SIZE = 16 << 20
_READ_SIZE = 1 << 20
_MAX_PENDING = 64  # submitted parts


def file_fingerprint(fd: int, pool: Executor, check: Callable[[], None]) -> str:
    """Return the fingerprint of a file: XXH3-128 of its size and of the XXH3-128 of each 16 MiB, in hexadecimal.

    It covers every byte of the file as a reader would get it. The parts are hashed in parallel, since a file of 10 GB
    would keep one core busy for about two seconds.

    Args:
        fd: the file descriptor.
        pool: the threads that hash.
        check: called often; raises if the result is no longer wanted.

    Raises:
        OSError: the file cannot be read.
    """
    size = os.fstat(fd).st_size
    hasher = xxhash.xxh3_128(size.to_bytes(8, "little"))
    pending: deque[Future[bytes]] = deque()
    for start in range(0, size, _PART_SIZE):
        pending.append(pool.submit(_hash_part, fd, start, min(start + _PART_SIZE, size)))
        if len(pending) == _MAX_PENDING:
            check()
            hasher.update(pending.popleft().result())
    for future in pending:
        check()
        hasher.update(future.result())
    return hasher.hexdigest()


def _hash_part(fd: int, start: int, stop: int) -> bytes:
    hasher, buffer = xxhash.xxh3_128(), bytearray(_READ_SIZE)
    view = memoryview(buffer)
    while start < stop:
        size = os.preadv(fd, [view[: stop - start]], start)
        if not size:
            raise OSError(errno.EIO, "a file is shorter than what was written to it")
        hasher.update(view[:size])
        start += size
    return bytes(hasher.digest())
