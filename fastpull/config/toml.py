"""Configuration files: TOML, one flat table, with the line of each value."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from fastpull.errors import InvalidSetting

_MAX_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class TomlValue:
    """A value of a configuration file.

    Attributes:
        value: the value as TOML gives it.
        place: its ``FILE:LINE``.
    """

    value: Any
    place: str


def read_config_file(path: str, known: Collection[str]) -> dict[str, TomlValue]:
    """Return the values of a configuration file; a missing file has none.

    Args:
        path: the file's path.
        known: the permitted names.

    Raises:
        InvalidSetting: the file cannot be read, is not TOML, or has an unknown name.

    Spec: TOML 1.0.
    """
    if not os.path.exists(path):  # also in a home that this user may not enter, as under `sudo -u`
        return {}
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_SIZE + 1)
    except OSError as error:
        raise InvalidSetting(path, f"cannot read the configuration file ({(error.strerror or '').lower()})") from error
    if len(content) > _MAX_SIZE:
        raise InvalidSetting(path, f"the configuration file is larger than {_MAX_SIZE} bytes")
    try:
        text = content.decode()
        values = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidSetting(path, f"not a TOML file ({error})") from error
    found = {}
    for name, value in values.items():
        place = f"{path}:{_line_of(name, text)}"
        if name not in known:
            near = difflib.get_close_matches(name.replace("-", "_").lower(), known, 1)
            advice = f"did you mean {near[0]}?" if near else "`fastpull config` lists all settings"
            raise InvalidSetting(name, f"{place}: unknown setting ({advice})")
        found[name] = TomlValue(value, place)
    return found


def _line_of(name: str, text: str) -> int:
    """Return the line of a key, or of the first table of its name, which the parser does not give."""
    quoted = re.escape(name)
    key = re.compile(rf"""\s*(?:\[+\s*)?(?:"{quoted}"|'{quoted}'|{quoted})\s*[=.\]]""")
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if key.match(line) and _is_complete("".join(lines[:number])):
            return number + 1
    return 1  # the name is written with escapes


def _is_complete(text: str) -> bool:
    """Return whether a text ends between two lines of TOML, not within a string or an array."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True
