"""Sources given as a plain path, without a scheme.

Only the form of the text decides whether it is a path, never the content of the current directory: a local file must
not replace an image in a registry.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from fastpull.errors import InvalidSource, NotFound

if TYPE_CHECKING:
    from fastpull.sources.archive import Archive

_NAMED = re.compile(r"[^:@]*(/|\.(tar(\.(gz|zst|xz|bz2))?|tgz|tzst|txz|tbz2?))")
_BEGINNINGS = ("/", "./", "../")
_MARKS = {"manifest.json": "docker-archive", "oci-layout": "oci-archive"}  # archives of docker have both
_LAYOUT = "oci-layout"


def is_path(text: str) -> bool:
    """Return whether a source without a scheme names a local file or directory.

    It does if it begins with ``/``, ``./`` or ``../``; or if it has neither tag nor digest, and ends with ``/`` or a
    tar suffix.
    """
    return text.startswith(_BEGINNINGS) or _NAMED.fullmatch(text) is not None


def path_of(text: str) -> str:
    """Return the path of such a source, without tag or digest.

    Raises:
        InvalidSource, InvalidDigest: a part is empty, or not a digest.
    """
    from fastpull.sources.layout import LayoutReference  # noqa: PLC0415  # not needed for registries

    return LayoutReference.parse("path", text).path


def scheme_of_directory(text: str, path: str) -> str | None:
    """Return the scheme of a directory; None for a file, which has to be opened. Blocks.

    Raises:
        InvalidSource: the path does not exist, or is a directory without a layout.
    """
    if os.path.isdir(path):
        if os.path.isfile(os.path.join(path, _LAYOUT)):
            return "oci"
        raise InvalidSource(text, f"this directory is not an OCI layout: it has no file {_LAYOUT}")
    if not os.path.lexists(path):
        elsewhere = "" if text.startswith(_BEGINNINGS) else f"; for an image in a registry, use docker://{text}"
        raise InvalidSource(text, f"there is no such file or directory{elsewhere}")
    return None


def scheme_of_archive(text: str, archive: Archive) -> str:
    """Return the scheme of an open archive, by its members.

    Raises:
        InvalidSource: it is not an image.
        MalformedDocument: a member is repeated, or not a file.
    """
    for member, scheme in _MARKS.items():
        try:
            with archive.open(member):
                return scheme
        except NotFound:
            continue
    raise InvalidSource(text, f"this archive is not an image: it has neither {' nor '.join(_MARKS)}")


def local_advice(text: str) -> str:
    """Return advice for a reference that no registry knows; empty if no local path could be meant. Blocks."""
    text = text.removeprefix("docker://")
    if os.path.isfile(text) or os.path.isfile(os.path.join(text, _LAYOUT)):
        return f"For the local path of that name, use ./{text}"
    return ""
