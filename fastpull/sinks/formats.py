"""The formats of outputs, and what an output's name says of them."""

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
_ARCHIVES = ("7z",)  # what begins like a version, and is none
_POSSIBLE = "NAME.sqsh, NAME.tar, NAME.tar.gz, NAME.tar.zst, or NAME/ for a directory; --format overrides the name"


def format_of(name: str) -> FormatName:
    """The format that an output's name stands for.

    A directory: what ends with a slash; what has no ending, or only that of a version, such as ``rootfs-1.2`` and
    ``debian.12``; and a directory that is there. Any other ending has to be known, so that a mistyped one does not
    become a directory of that name.

    Args:
        name: of the output; ``-`` is standard output.

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
