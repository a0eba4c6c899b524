"""A text that nobody is to see."""

from __future__ import annotations


class Secret:
    """Holds a password or token so that it gets into no message, trace, log or dump by accident.

    It is true if there is one, equal to another of the same content, and shows itself as ``***``.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself: for the one header or form that it goes into."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "***" if self._text else "(none)"

    def __reduce__(self) -> tuple[type[Secret], tuple[()]]:
        return Secret, ()  # a pickle or a copy by pickle is as good as a dump
