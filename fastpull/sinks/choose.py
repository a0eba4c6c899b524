"""The choice of a sink by the name of an output."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fastpull.errors import InvalidSetting
from fastpull.sinks.directory.sink import Directory
from fastpull.sinks.formats import format_of
from fastpull.sinks.squashfs.sink import Squashfs
from fastpull.sinks.tar.sink import Tar

if TYPE_CHECKING:
    from fastpull.config.settings import Settings
    from fastpull.sinks.base import Sink
    from fastpull.sinks.directory.ownership import OwnerName
    from fastpull.sinks.formats import FormatName

_OPTIONS = {
    "dir": {"owner", "replace_foreign"},
    "squashfs": {"compression", "block_size", "fragments", "mtime", "time", "hard_link"},
    "tar": {"mtime"},
    "tar.gz": {"mtime", "compression"},
    "tar.zst": {"mtime", "compression"},
}
_COMPRESSIONS = {"tar.gz": "gzip", "tar.zst": "zstd"}


def sink_for(
    output: str | os.PathLike[str],
    *,
    form: FormatName | None = None,
    force: bool = False,
    replace_foreign: bool | None = None,
    owner: OwnerName | None = None,
    compression: str | None = None,
    block_size: int | None = None,
    fragments: bool | None = None,
    mtime: int | None = None,
    time: int | None = None,
    hard_link: bool | None = None,
    settings: Settings | None = None,
) -> Sink:
    """Return the sink for an output, with the format that its name selects (`fastpull.sinks.formats.format_of`).

    Args:
        output: path of the output; ``-`` is standard output.
        form: format that overrides the name.
        force: whether an existing output is replaced.
        replace_foreign: whether `force` also replaces a directory that fastpull did not make, see `Directory`.
        owner: owner of a directory's content, see `Directory`.
        compression: compression of a squashfs image, see `Squashfs`, or of a compressed tar, see `Tar`.
        block_size: block size of a squashfs image, in bytes.
        fragments: whether small files of a squashfs image share blocks.
        mtime: modification time of everything in a squashfs image or a tar, in seconds since the epoch.
        time: time of a squashfs image itself, in seconds since the epoch.
        hard_link: whether a squashfs image may be a hard link to the cache's file, see `Squashfs`.
        settings: defaults for the options of a squashfs image.

    Raises:
        InvalidSetting: an option does not apply to this format, or its value is invalid.
    """
    name = os.fspath(output)
    if not name:
        raise InvalidSetting("", "the output path must not be empty")
    if form is None:
        form = format_of(name)
    options = {
        "replace_foreign": replace_foreign,
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
    if form in _COMPRESSIONS:
        given["compression"] = _compression_of(_COMPRESSIONS[form], compression)
    if form.startswith("tar"):
        return Tar(name, force=force, **given)
    if name == "-":
        raise InvalidSetting(name, f"a {form} cannot go to standard output")
    if form == "squashfs":
        if settings is not None:
            given = {"compression": settings.compression, "block_size": settings.block_size, **given}
        return Squashfs(name, force=force, **given)
    return Directory(name.rstrip("/") or "/", force=force, **given)


def _compression_of(name: str, given: str | None) -> str:
    """Return the compression of a tar whose name selects the algorithm."""
    if given is not None and given.partition(":")[0] != name:
        raise InvalidSetting(given, f"this output is compressed with {name}, of which only the level can be chosen")
    return given or name
