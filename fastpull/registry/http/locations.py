"""Where registries have redirected to for blobs."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from yarl import URL

    from fastpull.oci.digest import Digest

MAX_LOCATIONS = 256
"""Blobs whose location is remembered: more than a client downloads at a time, and one that is forgotten costs no more
than a redirect."""


@dataclass(slots=True, eq=False)
class Location:
    """The location of one blob.

    Attributes:
        url: that the registry has redirected to; None where it has not, or that has expired.
        renewal: held by the request that asks for a new one.
    """

    url: URL | None = None
    renewal: asyncio.Lock = field(default_factory=asyncio.Lock)


class Locations:
    """The locations of the blobs that were asked for last."""

    def __init__(self) -> None:
        self._known: OrderedDict[Digest, Location] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, digest: Digest) -> Location:
        """The location of a blob, to be changed by the caller."""
        found = self._known.setdefault(digest, Location())
        self._known.move_to_end(digest)
        if len(self._known) > MAX_LOCATIONS:
            self._known.popitem(last=False)
        return found
