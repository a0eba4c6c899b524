"""From what a user typed to a sink."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastpull.errors import InvalidSetting
from fastpull.sinks.directory import Directory

if TYPE_CHECKING:
    from fastpull.sinks.base import Sink
    from fastpull.sinks.ownership import OwnerName

_FILES = {".sqsh": "squashfs", ".squashfs": "squashfs", ".sqfs": "squashfs", ".tar": "tar"}


def sink_for(output: str | os.PathLike[str], *, force: bool = False, owner: OwnerName | None = None) -> Sink:
    """Makes the sink that an output's name stands for: a directory, also where its name has no slash at its end.

    Raises:
        InvalidSetting: the name stands for a format that cannot be written.
    """
    name = os.fspath(output)
    kind = "tar" if name == "-" else _FILES.get(os.path.splitext(name)[1])
    if kind is not None:
        raise InvalidSetting(name, f"a {kind} output cannot be written yet (end the name in '/' for a directory)")
    return Directory(name.rstrip("/") or "/", force=force, owner=owner)
