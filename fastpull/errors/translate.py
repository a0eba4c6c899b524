"""The translation of foreign exceptions at a border."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fastpull.errors.base import FastpullError


class ErrorTranslator:
    """A context that foreign exceptions leave only as ours. May be entered many times, also by several at once.

    Args:
        mapping: for each foreign type the function that makes ours of it; the first that fits is taken. An error
            that is ours already passes unchanged.
    """

    __slots__ = ("_mapping",)

    def __init__(self, mapping: Mapping[type[BaseException], Callable[[BaseException], BaseException]]) -> None:
        self._mapping = mapping

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None or isinstance(error, FastpullError):
            return
        for foreign, translate in self._mapping.items():
            if isinstance(error, foreign):
                raise translate(error) from error
