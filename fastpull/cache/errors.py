"""The only translation of OSError into CacheError."""

from __future__ import annotations

from fastpull.errors import CacheError, ErrorTranslator, from_os_error


def cache_errors(path: str | None = None, *, default: str | None = None) -> ErrorTranslator:
    """Translate OSError into CacheError.

    Args:
        path: named in the message, whatever file the system names.
        default: named where the system names no file.
    """

    def translate(error: BaseException) -> CacheError:
        assert isinstance(error, OSError)
        named = error.filename if isinstance(error.filename, str) else default
        return from_os_error(CacheError, error, path or named)

    return ErrorTranslator({OSError: translate})
