"""Seals: what the cache knows of a blob that it has verified."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Self

from fastpull.cache import checksummed_json


@cache
def boot_id() -> str:
    """Names this boot of this host: what was written but not synced is there as long as it lasts."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


@dataclass(frozen=True, slots=True)
class BlobMetadata:
    """Stands beside each blob, in a file of its own that is written before the blob appears.

    Attributes:
        size: of the blob, in bytes.
        fingerprint: XXH3-64 of the blob, in hexadecimal: tells accidents, never attacks.
        synced: whether the blob was on its disk before it appeared.
        boot: the boot under which it was verified.
    """

    size: int
    fingerprint: str
    synced: bool
    boot: str

    @classmethod
    def now(cls, size: int, fingerprint: str, synced: bool) -> Self:
        """A seal of this boot."""
        return cls(size, fingerprint, synced, boot_id())

    @property
    def is_fresh(self) -> bool:
        """Whether the blob can be taken to be what it was: no power cut can have come between."""
        return self.synced or self.boot == boot_id()

    def to_bytes(self) -> bytes:
        """The seal as a file."""
        return checksummed_json.to_bytes(asdict(self))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """Reads a seal; None for anything that is not one."""
        try:
            return cls.of(checksummed_json.from_bytes(content))
        except ValueError:
            return None

    @classmethod
    def of(cls, value: Any) -> Self | None:
        """Takes a seal out of JSON; None for anything that is not one."""
        try:
            seal = cls(value["size"], value["fingerprint"], value["synced"], value["boot"])
        except (KeyError, TypeError):
            return None
        kinds = (int, str, bool, str)
        sound = all(isinstance(got, kind) for got, kind in zip(asdict(seal).values(), kinds, strict=True))
        return seal if sound else None
