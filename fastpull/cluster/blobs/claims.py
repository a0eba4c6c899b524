"""Claims: files that show whether two ranks use the same path, however it is mounted."""

from __future__ import annotations

import contextlib
import os
import time

from fastpull.errors import CacheError, OutputError, from_os_error

_OWNER_SECONDS = 2.0  # the time that the other rank has to write its number


class Claim:
    """A file with the same name for all ranks of a job. The first rank that creates it owns the path.

    Args:
        path: the claimed path; its directory exists.
        job: a name that no other job has.
        rank: this rank.
        family: the type of errors.

    Spec: open(2), ``O_EXCL``: exclusive also on NFS since version 3.
    """

    def __init__(self, path: str, job: str, rank: int, family: type[CacheError | OutputError]) -> None:
        folder, name = os.path.split(os.path.abspath(path))
        self._path = os.path.join(folder, f".{name[:64]}.fastpull-{job}")
        self._rank = rank
        self._family = family
        self._is_held = False

    def acquire(self) -> int | None:
        """Claim the path; return None, or the rank that owns it. Blocks.

        Raises:
            CacheError, OutputError: the directory cannot be written to.
        """
        try:
            try:
                fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileExistsError:
                return self._owner()
            with open(fd, "w", encoding="ascii") as file:
                file.write(str(self._rank))
        except OSError as error:
            raise _translate(self._family, error, self._path) from error
        self._is_held = True
        return None

    def release(self) -> None:
        """Remove the claim. May be called twice."""
        if self._is_held:
            self._is_held = False
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _owner(self) -> int:
        deadline = time.monotonic() + _OWNER_SECONDS
        while True:
            with open(self._path, encoding="ascii") as file:
                text = file.read()
            if text or time.monotonic() > deadline:
                return int(text or 0)
            time.sleep(0.02)


def _translate(family: type[CacheError | OutputError], error: OSError, path: str) -> CacheError | OutputError:
    if issubclass(family, CacheError):
        return from_os_error(CacheError, error, path)
    return from_os_error(OutputError, error, path)
