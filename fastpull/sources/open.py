"""From what a user typed to a source."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastpull.errors import InvalidReference
from fastpull.sources.layout import LayoutReference, LayoutSource

if TYPE_CHECKING:
    from fastpull.sources.base import Source

_LATER = ("oci-archive", "docker-archive", "docker-daemon", "containers-storage", "dir")


def open_source(text: str, registry: Callable[[str], Source]) -> Source:
    """Reads ``REF``, ``docker://REF`` or ``oci:DIR[:TAG|@DIGEST]``.

    Args:
        text: what the user typed.
        registry: makes the source of what is left for a registry.

    Raises:
        InvalidReference, InvalidDigest: it is none of these.
    """
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "oci":
        return LayoutSource(LayoutReference.parse(rest))
    if colon and scheme == "docker" and rest.startswith("//"):
        return registry(rest.removeprefix("//"))
    if (colon and scheme in _LATER) or "://" in text:
        raise InvalidReference(text, "unknown kind of source (there are docker:// and oci:)")
    return registry(text)
