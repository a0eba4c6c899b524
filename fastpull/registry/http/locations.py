"""The URLs that registries redirect to for blobs."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from yarl import URL

    from fastpull.oci.digest import Digest

MAX_LOCATIONS = 256
"""How many locations are kept: more than a client downloads at once. An evicted one costs one more redirect."""


@dataclass(slots=True, eq=False)
class Location:
    """The location of one blob.

    Attributes:
        url: the target of the registry's redirect; None before the first redirect and after its expiry.
        renewal: the lock held by the request for a new URL.
    """

    url: URL | None = None
    renewal: asyncio.Lock = field(default_factory=asyncio.Lock)


class Locations:
    """The locations of the most recently used blobs."""

    def __init__(self) -> None:
        self._known: OrderedDict[Digest, Location] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, digest: Digest) -> Location:
        """Return the location of a blob; the caller updates it."""
        found = self._known.setdefault(digest, Location())
        self._known.move_to_end(digest)
        if len(self._known) > MAX_LOCATIONS:
            self._known.popitem(last=False)
        return found
