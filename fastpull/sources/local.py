"""Sources that are given as a path, without the word that says what kind of image is there.

Only the form of the text decides whether it is a path, never what is in the current directory: a file there must not
take the place of an image in a registry.
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
_MARKS = {"manifest.json": "docker-archive", "oci-layout": "oci-archive"}  # docker's own archives have both
_LAYOUT = "oci-layout"


def is_path(text: str) -> bool:
    """Whether a source without a scheme means a file or directory of this machine.

    It does if it begins with ``/``, ``./`` or ``../``; or if it has neither tag nor digest and ends with ``/`` or like
    a tar.
    """
    return text.startswith(_BEGINNINGS) or _NAMED.fullmatch(text) is not None


def path_of(text: str) -> str:
    """The path of a source that is one, without what names an image in it.

    Raises:
        InvalidSource, InvalidDigest: a part is empty, or no digest.
    """
    from fastpull.sources.layout import LayoutReference  # noqa: PLC0415  # a registry's images need no layouts

    return LayoutReference.parse("path", text).path


def scheme_of_directory(text: str, path: str) -> str | None:
    """The scheme of a directory; None for a file, which has to be opened. Blocks.

    Raises:
        InvalidSource: there is nothing, or a directory that is no layout.
    """
    if os.path.isdir(path):
        if os.path.isfile(os.path.join(path, _LAYOUT)):
            return "oci"
        raise InvalidSource(text, f"this directory is no OCI layout, it has no file {_LAYOUT}")
    if not os.path.lexists(path):
        elsewhere = "" if text.startswith(_BEGINNINGS) else f"; an image of that name in a registry is docker://{text}"
        raise InvalidSource(text, f"there is no such file or directory{elsewhere}")
    return None


def scheme_of_archive(text: str, archive: Archive) -> str:
    """The scheme of an open archive, by what is in it.

    Raises:
        InvalidSource: it is no image.
        MalformedDocument: a member stands there twice, or is no file.
    """
    for member, scheme in _MARKS.items():
        try:
            with archive.open(member):
                return scheme
        except NotFound:
            continue
    raise InvalidSource(text, f"this archive is no image, it has neither {' nor '.join(_MARKS)}")


def local_advice(text: str) -> str:
    """What to say of a reference that no registry knows; empty if nothing here could have been meant. Blocks."""
    text = text.removeprefix("docker://")
    if os.path.isfile(text) or os.path.isfile(os.path.join(text, _LAYOUT)):
        return f"For what is here under that name, say ./{text}"
    return ""
