"""Environment definition files: which image a job of CSCS's container engine will want.

Spec: CSCS documentation, Container Engine, EDF reference.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from fastpull.errors import InvalidSetting

KNOWN = frozenset({"annotations", "devices", "entrypoint", "env", "mounts", "workdir", "writable"})
"""What else a file may say; the container engine's affair."""

_IMAGE_FILES = (".sqsh", ".squashfs", ".sqfs")
_MAX_DEPTH = 10  # the specification's own
_MAX_FILES = 256
_MAX_SIZE = 1 << 20
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class EnvironmentFile:
    """An environment definition file, with all that it inherits.

    Attributes:
        path: of the file.
        image: reference or path, expanded; empty where the environment has no container.
        others: everything else that it says, as it stands there.
        inherited: the files that it is based on, in the order in which they count.
    """

    path: str
    image: str
    others: Mapping[str, Any]
    inherited: tuple[str, ...]

    @classmethod
    def load(cls, name: str, environment: Mapping[str, str] = os.environ) -> Self:
        """Reads a file and those that it is based on.

        Args:
            name: path of a file, or a name without ``.toml`` that is looked up in the directories of ``EDF_PATH``, by
                default ``~/.edf``.
            environment: for ``EDF_PATH``, and for variables in ``image``.

        Raises:
            InvalidSetting: a file is not there or no such file, files are based on each other in a circle or more
                than ten deep, or a variable is not set.
        """
        path = _find(name, "", environment)
        merged, order = _merge(path, (), environment)
        image = merged.pop("image", "")
        if not isinstance(image, str):
            raise InvalidSetting(path, "'image' is not a text in the environment file")
        return cls(path, _expand(image, path, environment), merged, tuple(order[:-1]))

    @property
    def image_file(self) -> str | None:
        """The path of the image, if it is a file and not a reference."""
        if self.image.endswith(_IMAGE_FILES) or self.image.startswith(("/", "./", "../", "~/")):
            return os.path.expanduser(self.image)
        return None

    @property
    def unknown(self) -> tuple[str, ...]:
        """What neither fastpull nor the container engine knows: most likely misspelt."""
        return tuple(sorted(self.others.keys() - KNOWN))


def _find(name: str, asked_by: str, environment: Mapping[str, str]) -> str:
    """The file of a name; a relative path is the caller's, not the asking file's."""
    by = f", which {asked_by} is based on" if asked_by else ""
    if not name or "\0" in name:
        raise InvalidSetting(name, f"not the name of an environment file{by}")
    if "/" in name or name.endswith(".toml"):
        path = os.path.abspath(os.path.expanduser(name))
        if os.path.isfile(path):
            return path
        raise InvalidSetting(name, f"no such environment file{by}")
    folders = [folder for folder in environment.get("EDF_PATH", "").split(":") if folder]
    for folder in folders or [os.path.expanduser("~/.edf")]:
        path = os.path.join(folder, name + ".toml")
        if os.path.isfile(path):
            return os.path.abspath(path)
    where = ", ".join(folders or ["~/.edf"])
    raise InvalidSetting(name, f"no such environment in {where}, set EDF_PATH or name a file{by}")


def _merge(path: str, below: tuple[str, ...], environment: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """What a file says with all that it is based on, and all files in the order in which they count."""
    real = os.path.realpath(path)
    if real in map(os.path.realpath, below):
        raise InvalidSetting(" -> ".join((*below, path)), "environment files that are based on each other")
    if len(below) > _MAX_DEPTH:
        raise InvalidSetting(path, f"environment files are based on each other more than {_MAX_DEPTH} deep")
    own = _read(path)
    bases = own.pop("base_environment", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise InvalidSetting(path, "'base_environment' is neither a text nor a list of texts")
    merged: dict[str, Any] = {}
    order: list[str] = []
    for base in filter(None, bases):
        found, files = _merge(_find(base, path, environment), (*below, path), environment)
        _lay_over(merged, found)
        order += files
        if len(order) > _MAX_FILES:
            raise InvalidSetting(path, f"an environment is based on more than {_MAX_FILES} files")
    _lay_over(merged, own)
    return merged, [*order, path]


def _lay_over(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Tables are merged and mounts are added to; everything else is replaced."""
    for key, value in above.items():
        before = below.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            below[key] = dict(before)
            _lay_over(below[key], value)
        elif key == "mounts" and isinstance(before, list) and isinstance(value, list):
            below[key] = [*before, *value]
        else:
            below[key] = value


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_SIZE + 1)
        if len(content) > _MAX_SIZE:
            raise InvalidSetting(path, f"more than {_MAX_SIZE} bytes are no environment file")
        return tomllib.loads(content.decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidSetting(path, f"the environment file cannot be read ({error})") from error


def _expand(text: str, path: str, environment: Mapping[str, str]) -> str:
    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        if not _NAME.fullmatch(name) or name not in environment:
            raise InvalidSetting("${" + name + "}", f"this variable of 'image' is not set, in {path}")
        return environment[name]

    return _VARIABLE.sub(replaced, text)
