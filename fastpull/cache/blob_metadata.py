"""Blob metadata: the facts that the cache has verified about a blob, in a file with the suffix ``.seal``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Self

from fastpull.cache import checksummed_json


@cache
def boot_id() -> str:
    """Return the ID of this boot of this host. Data that is written but not synced lasts as long as the boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


@dataclass(frozen=True, slots=True)
class BlobMetadata:
    """Metadata of a blob, in its own file, written before the blob appears.

    Attributes:
        size: size of the blob, in bytes.
        fingerprint: XXH3-64 of the blob, in hexadecimal; detects accidents, not attacks.
        synced: whether the blob was on disk before it appeared.
        boot: boot ID at the time of the verification.
    """

    size: int
    fingerprint: str
    synced: bool
    boot: str

    @classmethod
    def now(cls, size: int, fingerprint: str, synced: bool) -> Self:
        """Return metadata with the current boot ID."""
        return cls(size, fingerprint, synced, boot_id())

    @property
    def is_fresh(self) -> bool:
        """Whether the blob is still as verified: no power cut can have damaged it since."""
        return self.synced or self.boot == boot_id()

    def to_bytes(self) -> bytes:
        """Return the content of the metadata file."""
        return checksummed_json.to_bytes(asdict(self))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """Parse a metadata file; return None if it is damaged."""
        try:
            return cls.of(checksummed_json.from_bytes(content))
        except ValueError:
            return None

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """Return metadata from JSON; None if it is malformed."""
        try:
            metadata = cls(value["size"], value["fingerprint"], value["synced"], value["boot"])
        except (KeyError, TypeError):
            return None
        kinds = (int, str, bool, str)
        is_valid = all(isinstance(got, kind) for got, kind in zip(asdict(metadata).values(), kinds, strict=True))
        return metadata if is_valid else None
