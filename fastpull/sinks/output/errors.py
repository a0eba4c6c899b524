"""The translation of OSError at the border to outputs: every one becomes an OutputError that names the path."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from fastpull.errors import FastpullError, OutputError, from_os_error


@contextlib.contextmanager
def output_errors(path: bytes) -> Iterator[None]:
    """Translate OSError into OutputError; fastpull's own errors pass unchanged.

    Args:
        path: path of the output, for errors that name no file.
    """
    try:
        yield
    except FastpullError:
        raise
    except OSError as error:
        raise output_error(error, error.filename if isinstance(error.filename, str) else path) from error


def output_error(error: OSError, path: str | bytes) -> OutputError:
    """Return the OutputError for an OSError at a path."""
    return from_os_error(OutputError, error, path)


def native_output_error(number: int, path: str | bytes) -> OutputError:
    """Return the OutputError for the errno that a native function returned."""
    return output_error(OSError(number, os.strerror(number)), path)


def raise_errno(number: int, path: bytes) -> None:
    """Raise OSError for the errno that a native function returned; 0 means success."""
    if number:
        raise OSError(number, os.strerror(number), os.fsdecode(path))
