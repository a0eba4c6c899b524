"""Environment definition files (EDF), which name the image for a job of CSCS's container engine.

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
"""Keys that the container engine reads and fastpull does not."""

_IMAGE_FILES = (".sqsh", ".squashfs", ".sqfs")
_MAX_DEPTH = 10  # the limit of the specification
_MAX_FILES = 256
_MAX_SIZE = 1 << 20
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class EnvironmentFile:
    """An environment definition file, merged with its base environments.

    Attributes:
        path: path of the file.
        image: expanded reference or path of the image; empty for an environment without a container.
        others: all other keys with their values, unexpanded.
        inherited: files of the base environments, in order of increasing precedence.
    """

    path: str
    image: str
    others: Mapping[str, Any]
    inherited: tuple[str, ...]

    @classmethod
    def load(cls, name: str, environment: Mapping[str, str] = os.environ) -> Self:
        """Load a file and its base environments.

        Args:
            name: path of a file, or a name without ``.toml`` that is looked up in the directories of ``EDF_PATH``, by
                default ``~/.edf``.
            environment: variables for ``EDF_PATH`` and for the expansion of ``image``.

        Raises:
            InvalidSetting: a file is missing or invalid, base environments form a loop or are more than ten deep, or a
                variable is not set.
        """
        path = _find(name, "", environment)
        merged, order = _merge(path, (), environment)
        image = merged.pop("image", "")
        if not isinstance(image, str):
            raise InvalidSetting(path, "'image' has to be a string in an environment file")
        return cls(path, _expand(image, path, environment), merged, tuple(order[:-1]))

    @property
    def image_file(self) -> str | None:
        """The path of the image if it is a file; None for a reference."""
        if self.image.endswith(_IMAGE_FILES) or self.image.startswith(("/", "./", "../", "~/")):
            return os.path.expanduser(self.image)
        return None

    @property
    def unknown(self) -> tuple[str, ...]:
        """Keys that neither fastpull nor the container engine reads, most likely misspelt."""
        return tuple(sorted(self.others.keys() - KNOWN))


def _find(name: str, asked_by: str, environment: Mapping[str, str]) -> str:
    """Return the path of an environment; a relative path is relative to the current directory."""
    by = f", which {asked_by} is based on" if asked_by else ""
    if not name or "\0" in name:
        raise InvalidSetting(name, f"not the name of an environment file{by}")
    if "/" in name or name.endswith(".toml"):
        path = os.path.abspath(os.path.expanduser(name))
        if os.path.isfile(path):
            return path
        raise InvalidSetting(name, f"no such environment file{by}")
    directories = [directory for directory in environment.get("EDF_PATH", "").split(":") if directory]
    for directory in directories or [os.path.expanduser("~/.edf")]:
        path = os.path.join(directory, name + ".toml")
        if os.path.isfile(path):
            return os.path.abspath(path)
    where = ", ".join(directories or ["~/.edf"])
    raise InvalidSetting(name, f"no such environment in {where}, set EDF_PATH or name a file{by}")


def _merge(path: str, below: tuple[str, ...], environment: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return a file merged with its base environments, and all files in order of increasing precedence."""
    real = os.path.realpath(path)
    if real in map(os.path.realpath, below):
        raise InvalidSetting(" -> ".join((*below, path)), "these base environments form a loop")
    if len(below) > _MAX_DEPTH:
        raise InvalidSetting(path, f"base environments are more than {_MAX_DEPTH} deep")
    own = _read(path)
    bases = own.pop("base_environment", [])
    bases = [bases] if isinstance(bases, str) else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise InvalidSetting(path, "'base_environment' has to be a string or a list of strings")
    merged: dict[str, Any] = {}
    order: list[str] = []
    for base in filter(None, bases):
        found, files = _merge(_find(base, path, environment), (*below, path), environment)
        _merge_into(merged, found)
        order += files
        if len(order) > _MAX_FILES:
            raise InvalidSetting(path, f"an environment has more than {_MAX_FILES} base environments")
    _merge_into(merged, own)
    return merged, [*order, path]


def _merge_into(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Merge an environment into its base: tables are merged, mounts appended, other values replaced."""
    for key, value in above.items():
        before = below.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            below[key] = dict(before)
            _merge_into(below[key], value)
        elif key == "mounts" and isinstance(before, list) and isinstance(value, list):
            below[key] = [*before, *value]
        else:
            below[key] = value


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_SIZE + 1)
        if len(content) > _MAX_SIZE:
            raise InvalidSetting(path, f"an environment file has at most {_MAX_SIZE} bytes")
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
