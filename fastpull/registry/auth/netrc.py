"""Netrc files: enroot's ``.credentials``, and ``~/.netrc`` with ``--netrc``.

Spec: the GNU inetutils manual, "The .netrc file"; enroot's doc/cmd/import.md for ``$`` in passwords.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from fastpull.config.secret import Secret
from fastpull.errors import InvalidSetting

_WORD = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|(\S+))')
_VALUES = {"login": "login", "user": "login", "account": "account", "password": "password"}


@dataclass(frozen=True, slots=True)
class NetrcEntry:
    """The entry of one machine.

    Attributes:
        name: the name of the host; empty for ``default``.
        login: the user name; empty if there is none.
        password: the password as written in the file; empty if there is none.
        line: the line of the entry, counted from 1.
    """

    name: str
    login: str
    password: Secret
    line: int

    @property
    def is_expression(self) -> bool:
        """Whether enroot expands the password with a shell."""
        return self.password.reveal().startswith("$")


def parse_netrc(text: str, path: str, *, expressions: bool = False) -> list[NetrcEntry]:
    """Parse all entries of a file, in order.

    Args:
        text: the contents of the file.
        path: the path of the file, for messages.
        expressions: whether a password that begins with ``$`` extends to the end of its line, as for enroot.

    Raises:
        InvalidSetting: an unexpected word; with its line.
    """
    machines: list[dict[str, str]] = []
    words = _Words(text)
    for word in words:
        where = f"{path}, line {words.line}"
        if word == "default":
            machines.append({"name": "", "line": str(words.line)})
        elif word == "machine" or word in _VALUES:
            value = words.value(may_be_expression=expressions and word == "password")
            if value is None:
                raise InvalidSetting(where, f"nothing after {word!r}")
            if word == "machine":
                machines.append({"name": value.lower(), "line": str(words.line)})
            elif not machines:
                raise InvalidSetting(where, f"{word!r} before any machine")
            else:
                machines[-1][_VALUES[word]] = value
        else:  # the word is not shown: it may be part of a password
            raise InvalidSetting(where, "a word other than machine, login and password")
    return [
        NetrcEntry(one["name"], one.get("login", ""), Secret(one.get("password", "")), int(one["line"]))
        for one in machines
    ]


class _Words:
    """Iterates over the words of a file, without comments and macros."""

    def __init__(self, text: str) -> None:
        self.line = 0
        self._lines = iter(text.splitlines())
        self._rest = ""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        word = self._next()
        while word is None or word.startswith("#") or word == "macdef":
            if word == "macdef":  # a macro ends at an empty line
                while self._rest.strip():
                    self._advance()
            else:
                self._advance()
            word = self._next()
        return word

    def value(self, *, may_be_expression: bool) -> str | None:
        """Return the next word, also from a later line, or an expression up to its line's end; None at the end."""
        try:
            while not self._rest.strip():
                self._advance()
        except StopIteration:
            return None
        if may_be_expression and self._rest.lstrip().startswith("$"):
            text, self._rest = self._rest.strip(), ""
            return text
        return self._next()

    def _advance(self) -> None:
        self._rest = next(self._lines)
        self.line += 1

    def _next(self) -> str | None:
        match = _WORD.match(self._rest)
        if match is None:
            return None
        self._rest = self._rest[match.end() :]
        return match[2] if match[1] is None else re.sub(r"\\(.)", r"\1", match[1])


def find_machine(machines: list[NetrcEntry], *names: str) -> NetrcEntry | None:
    """Return the first entry with a password for one of the names. ``default`` never matches: it names no host."""
    return next((one for name in names for one in machines if one.name == name.lower() and one.password), None)
