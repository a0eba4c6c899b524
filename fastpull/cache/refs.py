"""What references resolved to: for listings, and for whoever looks after the cache. Nothing trusts them."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from fastpull.errors import InvalidDigest
from fastpull.oci.digest import Digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastpull.cache.store import Store


@dataclass(frozen=True, slots=True)
class Ref:
    """One reference on one platform.

    Attributes:
        reference: as it was resolved.
        platform: that it was resolved for.
        manifest: digest of the image's manifest.
        time: of the resolution, in seconds since the epoch.
    """

    reference: str
    platform: str
    manifest: Digest
    time: float

    @classmethod
    def now(cls, reference: str, platform: str, manifest: Digest) -> Self:
        """A reference that was resolved just now."""
        return cls(reference, platform, manifest, time.time())

    def keep(self, store: Store) -> None:
        """Remembers it, in place of what it resolved to before."""
        store.write_ref(self._key, json.dumps({**asdict(self), "manifest": str(self.manifest)}).encode() + b"\n")

    def forget(self, store: Store) -> None:
        """Removes it. The image's blobs stay."""
        store.remove_ref(self._key)

    @property
    def _key(self) -> str:
        return f"{self.reference} {self.platform}"


def read_refs(store: Store) -> Iterator[Ref]:
    """The references of a cache; damaged files are passed over."""
    for content in store.read_refs():
        try:
            value = json.loads(content)
            yield Ref(value["reference"], value["platform"], Digest.parse(value["manifest"]), float(value["time"]))
        except (ValueError, KeyError, TypeError, InvalidDigest):
            continue
