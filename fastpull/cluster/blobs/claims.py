"""Claims: files that tell whether two ranks work in the same place, over whatever it is mounted."""

from __future__ import annotations

import contextlib
import os
import time

from fastpull.errors import CacheError, OutputError, from_os_error

_PATIENCE_SECONDS = 2.0  # for the other one to write who it is


class Claim:
    """A file whose name is the same for all ranks of a job: who can create it is alone, or the first.

    Args:
        path: that is claimed; its directory exists.
        job: a name that no other job has.
        rank: who claims.
        family: of errors.

    Spec: open(2), ``O_EXCL``: exclusive on NFS, too, since version 3.
    """

    def __init__(self, path: str, job: str, rank: int, family: type[CacheError | OutputError]) -> None:
        folder, name = os.path.split(os.path.abspath(path))
        self._path = os.path.join(folder, f".{name[:64]}.fastpull-{job}")
        self._rank = rank
        self._family = family
        self._is_ours = False

    def make(self) -> int | None:
        """Claims; returns None, or the rank that was there before. Blocks.

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
            raise _ours(self._family, error, self._path) from error
        self._is_ours = True
        return None

    def release(self) -> None:
        """Gives it up. May be called twice."""
        if self._is_ours:
            self._is_ours = False
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _owner(self) -> int:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with open(self._path, encoding="ascii") as file:
                text = file.read()
            if text or time.monotonic() > deadline:
                return int(text or 0)
            time.sleep(0.02)


def _ours(family: type[CacheError | OutputError], error: OSError, path: str) -> CacheError | OutputError:
    if issubclass(family, CacheError):
        return from_os_error(CacheError, error, path)
    return from_os_error(OutputError, error, path)
