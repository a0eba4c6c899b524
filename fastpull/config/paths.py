"""Paths of the configuration files that container tools share.

Spec: containers-registries.conf(5), containers-registries.conf.d(5), containers-policy.json(5), containers-certs.d(5);
XDG Base Directory Specification.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fastpull.errors import InvalidSetting

SYSTEM_DIRECTORY = "/etc"


def find_file(name: str, environment: Mapping[str, str]) -> str | None:
    """Return the path of the user's file of the containers tools, or of the system's; None if there is none."""
    places = (os.path.join(directory, name) for directory in config_directories("containers", environment))
    return next(filter(os.path.isfile, places), None)


def config_directories(family: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the user's and the system's directory of a family of tools: ``~/.config/FAMILY``, ``/etc/FAMILY``."""
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, family), os.path.join(SYSTEM_DIRECTORY, family)


def drop_ins(directory: str, suffix: str) -> list[str]:
    """Return the drop-in files of a directory, in the order in which they are read.

    Raises:
        InvalidSetting: the directory exists, but cannot be read.
    """
    if not os.path.isdir(directory):  # also a home that this user may not enter, as under `sudo -u`
        return []
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise InvalidSetting(directory, f"cannot be read ({error.strerror})") from error
    return [os.path.join(directory, name) for name in names if name.endswith(suffix)]


def read_file(path: str) -> bytes:
    """Return the content of a file.

    Raises:
        InvalidSetting: the file is missing or cannot be read, so that its rules are unknown.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidSetting(path, f"cannot be read ({error.strerror})") from error
