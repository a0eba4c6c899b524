"""The only translation of OSError into CacheError."""

from __future__ import annotations

from contextlib import AbstractContextManager

from fastpull.errors import CacheError, from_os_error, translate_errors


def cache_errors(path: str | None = None, *, default: str | None = None) -> AbstractContextManager[None]:
    """Translate OSError into CacheError.

    Args:
        path: named in the message, whatever file the system names.
        default: named where the system names no file.
    """

    def translate(error: BaseException) -> CacheError:
        assert isinstance(error, OSError)
        named = error.filename if isinstance(error.filename, str) else default
        return from_os_error(CacheError, error, path or named)

    return translate_errors({OSError: translate})
