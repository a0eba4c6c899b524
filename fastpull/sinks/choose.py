"""From what a user typed to a sink."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fastpull.errors import InvalidSetting
from fastpull.sinks.directory import Directory
from fastpull.sinks.squashfs.sink import Squashfs
from fastpull.sinks.tar import Tar

if TYPE_CHECKING:
    from fastpull.config import Settings
    from fastpull.sinks.base import Sink
    from fastpull.sinks.ownership import OwnerName

FormatName: TypeAlias = Literal["dir", "squashfs", "tar"]

_OPTIONS = {
    "dir": {"owner"},
    "squashfs": {"compression", "block_size", "fragments", "mtime", "time", "hard_link"},
    "tar": {"mtime"},
}
_FILES: dict[str, FormatName] = {".sqsh": "squashfs", ".squashfs": "squashfs", ".sqfs": "squashfs", ".tar": "tar"}


def sink_for(
    output: str | os.PathLike[str],
    *,
    form: FormatName | None = None,
    force: bool = False,
    owner: OwnerName | None = None,
    compression: str | None = None,
    block_size: int | None = None,
    fragments: bool | None = None,
    mtime: int | None = None,
    time: int | None = None,
    hard_link: bool | None = None,
    settings: Settings | None = None,
) -> Sink:
    """Makes the sink that an output's name stands for: a directory, unless it ends like a file, or is ``-``.

    Args:
        output: path of the output; ``-`` is standard output.
        form: what to make, whatever the name.
        force: replace what is there.
        owner: of a directory's content, see `Directory`.
        compression: of a squashfs image, see `Squashfs`; likewise the next two.
        block_size: in bytes.
        fragments: whether small files share blocks.
        mtime: of everything in a squashfs image or a tar, in seconds since the epoch.
        time: of a squashfs image itself, likewise.
        hard_link: whether a squashfs image may be another name of the cache's file, see `Squashfs`.
        settings: say how a squashfs image is made where the options do not.

    Raises:
        InvalidSetting: an option has no meaning for this kind of output, or cannot be.
    """
    name = os.fspath(output)
    if not name:
        raise InvalidSetting("", "the output has to have a name")
    if form is None:
        form = "tar" if name == "-" else _FILES.get(os.path.splitext(name)[1], "dir")
    options = {
        "owner": owner,
        "compression": compression,
        "block_size": block_size,
        "fragments": fragments,
        "mtime": mtime,
        "time": time,
        "hard_link": hard_link,
    }
    given: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    for option in given.keys() - _OPTIONS[form]:
        raise InvalidSetting(str(given[option]), f"{option} has no meaning for a {form} output, leave it out")
    if form == "tar":
        return Tar(name, force=force, **given)
    if name == "-":
        raise InvalidSetting(name, f"a {form} cannot go to standard output")
    if form == "squashfs":
        if settings is not None:
            given = {"compression": settings.compression, "block_size": settings.block_size, **given}
        return Squashfs(name, force=force, **given)
    return Directory(name.rstrip("/") or "/", force=force, **given)
