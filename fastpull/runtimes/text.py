"""Text of images on its way into files that other programs interpret: an image's author is not their user.

A file that is read by lines gets no text with a line break; a mount table gets only plain paths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_MAX_SHOWN = 80
_MAX_LISTED = 3
_MAX_NAME = 255
_MAX_PATH = 4095
_INTERPRETED = frozenset(" \\$`\"'#")  # by readers of fstab(5), by envsubst, by shells
_MARKER = ".wh."


def is_one_line(text: str) -> bool:
    """Whether a text has no line break, in the widest sense that any reader has of one."""
    return not text or text.splitlines() == [text]


def as_one_line(text: str) -> str:
    """The text with a blank for each control character and line break."""
    return "".join(character if character.isprintable() else " " for character in text)


def is_plain_path(text: str) -> bool:
    """Whether a text is the absolute path of something below the root, and nothing else to whoever reads it.

    It has no blanks, control characters, ``..``, or characters that a mount table or a shell interprets.
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
    """A text for a message: quoted, in ASCII, and cut off where it is long."""
    return ascii(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…")


def listed(texts: Sequence[str]) -> str:
    """The first few of several texts for a message, and the number of the others."""
    names = ", ".join(map(shown, texts[:_MAX_LISTED]))
    return names if len(texts) <= _MAX_LISTED else f"{names} and {len(texts) - _MAX_LISTED} more"


def split_lines(variables: Iterable[str]) -> tuple[list[str], list[str]]:
    """Variables that fit into one line, and the names of those that do not.

    Args:
        variables: ``NAME=value`` each.
    """
    kept: list[str] = []
    left_out: list[str] = []
    for variable in variables:
        if is_one_line(variable):
            kept.append(variable)
        else:
            left_out.append(variable.partition("=")[0])
    return kept, left_out
