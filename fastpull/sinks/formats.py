"""The formats of outputs, and the format that an output's name selects."""

from __future__ import annotations

import difflib
import os
import re
from typing import Literal, TypeAlias

from fastpull.errors import InvalidSetting

FormatName: TypeAlias = Literal["dir", "squashfs", "tar", "tar.gz", "tar.zst"]

_ENDINGS: dict[str, FormatName] = {
    ".sqsh": "squashfs",
    ".squashfs": "squashfs",
    ".sqfs": "squashfs",
    ".tar": "tar",
    ".tar.gz": "tar.gz",
    ".tgz": "tar.gz",
    ".tar.zst": "tar.zst",
    ".tzst": "tar.zst",
}
_VERSION = re.compile(r"v?[0-9][0-9A-Za-z_+~-]*")
_ARCHIVES = ("7z",)  # an ending that looks like a version but is none
_POSSIBLE = "NAME.sqsh, NAME.tar, NAME.tar.gz, NAME.tar.zst, or NAME/ for a directory; --format overrides the name"


def format_of(name: str) -> FormatName:
    """Return the format for an output's name.

    A directory is a name that ends with a slash, has no ending, has only the ending of a version (``rootfs-1.2``,
    ``debian.12``), or is that of an existing directory. Any other ending must be known, so that a mistyped ending does
    not create a directory.

    Args:
        name: name of the output; ``-`` is standard output.

    Raises:
        InvalidSetting: the ending is unknown.
    """
    if name == "-":
        return "tar"
    base = os.path.basename(name)
    for ending, form in _ENDINGS.items():
        if base.endswith(ending):
            return form
    ending = os.path.splitext(base)[1]
    is_version = _VERSION.fullmatch(ending[1:]) is not None and ending[1:].lower() not in _ARCHIVES
    if len(ending) <= 1 or is_version or os.path.isdir(name):
        return "dir"
    close = difflib.get_close_matches(ending.lower(), _ENDINGS, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise InvalidSetting(name, f"unknown ending {ending}{hint}, an output is {_POSSIBLE}")
