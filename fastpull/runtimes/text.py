"""Checks of an image's text before it is written to files that other programs interpret.

The author of an image is not trusted: a file that is read by lines gets no text with a line break, and a mount table
gets only plain paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MAX_SHOWN = 80
_MAX_LISTED = 3
_MAX_NAME = 255
_MAX_PATH = 4095
_INTERPRETED = frozenset(" \\$`\"'#")  # by fstab(5), envsubst or shells
_MARKER = ".wh."


def is_one_line(text: str) -> bool:
    """Return whether a text has no line break of any kind."""
    return not text or text.splitlines() == [text]


def as_one_line(text: str) -> str:
    """Return the text with each control character and line break replaced by a blank."""
    return "".join(character if character.isprintable() else " " for character in text)


def is_plain_path(text: str) -> bool:
    """Return whether a text is an absolute path below the root that every program reads in the same way.

    Such a path has no blanks, control characters, ``..``, or characters that a mount table or a shell interprets.
    """
    if not text.startswith("/") or not text.isprintable() or not _INTERPRETED.isdisjoint(text):
        return False
    names = [name for name in text.split("/") if name not in ("", ".")]
    return (
        bool(names)
        and len(text.encode()) <= _MAX_PATH
        and not any(name == ".." or name.startswith(_MARKER) or len(name.encode()) > _MAX_NAME for name in names)
    )


def shown(text: str) -> str:
    """Return a text for a message: quoted, in ASCII, and shortened."""
    return ascii(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…")


def listed(texts: Sequence[str]) -> str:
    """Return the first few of several texts for a message, and the number of the others."""
    names = ", ".join(map(shown, texts[:_MAX_LISTED]))
    return names if len(texts) <= _MAX_LISTED else f"{names} and {len(texts) - _MAX_LISTED} more"


def split_lines(variables: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the variables of one line, and the names of the others.

    Args:
        variables: texts of the form ``NAME=value``.
    """
    kept: list[str] = []
    left_out: list[str] = []
    for variable in variables:
        if is_one_line(variable):
            kept.append(variable)
        else:
            left_out.append(variable.partition("=")[0])
    return kept, left_out
