"""The translation of foreign exceptions into fastpull's at a border."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from fastpull.errors.base import FastpullError

ErrorMapping = Mapping[type[BaseException], Callable[[BaseException], FastpullError]]
"""For each foreign type, the function that makes the error of fastpull. The first type that matches applies."""


@contextmanager
def translate_errors(mapping: ErrorMapping) -> Iterator[None]:
    """Raise foreign exceptions of the block as errors of fastpull.

    Args:
        mapping: the errors of one border. A `FastpullError`, and an exception that is not listed, pass unchanged.
    """
    try:
        yield
    except FastpullError:
        raise
    except Exception as error:
        for foreign, translate in mapping.items():
            if isinstance(error, foreign):
                raise translate(error) from error
        raise
