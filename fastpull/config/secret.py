"""A text that is never printed."""

from __future__ import annotations


class Secret:
    """A password or token that no message, trace, log or dump shows by accident.

    It is true if it is not empty, equals another of the same content, and prints as ``***``.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text, for the header or form that sends it."""
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
        return Secret, ()  # a pickle is a dump as well
