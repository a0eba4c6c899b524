"""The root of all errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


def printable(name: bytes | str) -> str:
    """Return text of an image, a registry or a file name for terminals: invalid UTF-8 and controls are escaped."""
    text = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else name
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(eq=False)
class FastpullError(Exception):
    """The root of the tree.

    Attributes:
        exit_code: the command's exit code; one for each family.
        asked: the request and its login, where the message does not name them.
    """

    exit_code: ClassVar[int] = 1
    asked = ""

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message

    @property
    def message(self) -> str:
        """The event and its place, in one line that is safe for terminals."""
        return printable(f"{self._message()} ({self.asked})" if self.asked else self._message())

    @property
    def hint(self) -> str:
        """The next step; empty if there is none."""
        return printable(self._hint())

    def _message(self) -> str:
        return type(self).__name__

    def _hint(self) -> str:
        return ""
