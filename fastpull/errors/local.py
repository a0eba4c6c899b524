"""Errors of the cache and the output."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TypeVar

from fastpull.errors.base import FastpullError, printable

# --- 30, 31: the local machine


@dataclass(eq=False)
class _LocalError(FastpullError, OSError):
    """An operation on a local path failed."""

    path: str
    reason: str
    errno: int | None = None

    def _message(self) -> str:
        return f"{self.reason}: {self.path}"

    def _hint(self) -> str:
        return _ERRNO_HINTS.get(self.errno or 0, "")


class CacheError(_LocalError):
    """The cache cannot be read or written."""

    exit_code = 30

    def _message(self) -> str:
        return f"cache: {super()._message()}"


class LockLost(CacheError):
    """This process stalled for so long that another process took over its lock."""

    def _hint(self) -> str:
        return "Nothing is damaged; try again"


class OutputError(_LocalError):
    """The destination, or the staging directory beside it, cannot be written."""

    exit_code = 31

    def _message(self) -> str:
        return f"output: {super()._message()}"


@dataclass(eq=False)
class OutputExists(OutputError, FileExistsError):
    """The destination exists and must not be replaced.

    Attributes:
        advice: the next step.
    """

    advice: str = "Choose another output, or replace this one with --force"

    def _hint(self) -> str:
        return self.advice


_ERRNO_HINTS = {
    errno.ENOSPC: "Free some space, or choose another filesystem",
    errno.EDQUOT: "The disk quota is used up; free some space, or choose another filesystem",
    errno.EACCES: "Check the permissions, or choose another path",
    errno.EROFS: "The filesystem is mounted read-only; choose another path",
    errno.EFBIG: "Raise the limit of file sizes (ulimit -f), or choose a filesystem that takes larger files",
    errno.EMFILE: "Raise the limit of open files (ulimit -n)",
    errno.ENOLCK: "Choose another filesystem (--cache), or mount this one with locks that hold between nodes",
}


Local = TypeVar("Local", CacheError, OutputError)


def from_os_error(family: type[Local], error: OSError, path: str | bytes | None = None) -> Local:
    """Return an error of a family for an operating-system error, with the faulty path."""
    culprit = path if path is not None else error.filename
    text = printable(os.fsencode(culprit)) if isinstance(culprit, str | bytes | os.PathLike) else "?"
    return family(path=text, reason=(error.strerror or str(error)).lower(), errno=error.errno)
