"""Configuration files that a machine has for its container tools: where they are.

Spec: containers-registries.conf(5), containers-registries.conf.d(5), containers-policy.json(5), containers-certs.d(5);
XDG Base Directory Specification.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fastpull.errors import InvalidSetting

SYSTEM_FOLDER = "/etc"


def find_file(name: str, environment: Mapping[str, str]) -> str | None:
    """The user's file of this name, or else the system's, of podman, skopeo and their kin."""
    places = (os.path.join(folder, name) for folder in folders("containers", environment))
    return next(filter(os.path.isfile, places), None)


def folders(family: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Where a family of programs has a user's own files, and the system's: ``~/.config/FAMILY``, ``/etc/FAMILY``."""
    base = environment.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, family), os.path.join(SYSTEM_FOLDER, family)


def drop_ins(folder: str, suffix: str) -> list[str]:
    """The files of a folder that complete another, in the order in which they are read.

    Raises:
        InvalidSetting: the folder is there, but cannot be read.
    """
    if not os.path.isdir(folder):  # nor is a home that one may not enter, as with `sudo -u`, one's own
        return []
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise InvalidSetting(folder, f"cannot be read ({error.strerror})") from error
    return [os.path.join(folder, name) for name in names if name.endswith(suffix)]


def read_file(path: str) -> bytes:
    """Reads a whole file.

    Raises:
        InvalidSetting: it is not there, or cannot be read: nobody knows then what it forbids.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidSetting(path, f"cannot be read ({error.strerror})") from error
