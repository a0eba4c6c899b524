"""Windows: what travels between ranks, a piece of a blob or of a product, with a header that says where it belongs."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import xxhash

from fastpull.cluster.transport.fabric import HEADER_SIZE

_LAYOUT = struct.Struct("<4sIIIIIIQQQ")
_FINGERPRINT = struct.Struct("<Q")
_MAGIC = b"fpw2"
_MAX_U64 = (1 << 64) - 1


class FrameKind(IntEnum):
    """What a window is a piece of."""

    BLOB = 0
    PRODUCT = 1


@dataclass(frozen=True, slots=True)
class Frame:
    """A piece of a blob, or of a file of a product.

    Attributes:
        image: number of the image within the job.
        round: of the exchange of this image: see `fastpull.cluster.blobs.exchange`.
        kind: what it is a piece of.
        item: number of the blob within the image, or of the file within all products.
        part: of a blob the number of the stretch; of a product its edition.
        origin: the rank that fetched, read or made it.
        offset: within the item, in bytes.
        size: in bytes.
        total: bytes of the item, if the sender knows that.
    """

    image: int
    round: int
    kind: FrameKind
    item: int
    part: int
    origin: int
    offset: int
    size: int
    total: int | None = None

    def seal(self, memory: memoryview) -> memoryview:
        """Writes the header in front of the bytes, which stand behind `HEADER_SIZE`; returns what is to be sent."""
        stop = HEADER_SIZE + self.size
        fields = self.image, self.round, self.kind, self.item, self.part, self.origin
        total = _MAX_U64 if self.total is None else self.total
        _LAYOUT.pack_into(memory, 0, _MAGIC, *fields, self.offset, self.size, total)
        _FINGERPRINT.pack_into(memory, _LAYOUT.size, _fingerprint(memory[:stop]))
        return memory[:stop]

    @classmethod
    def open(cls, memory: memoryview) -> Self:
        """Reads a header.

        Raises:
            ValueError: it is none.
        """
        if len(memory) < HEADER_SIZE:
            raise ValueError(f"{len(memory)} bytes are no window")
        magic, image, round_, kind, item, part, origin, offset, size, total = _LAYOUT.unpack_from(memory)
        if magic != _MAGIC or size != len(memory) - HEADER_SIZE:
            raise ValueError("its header is damaged")
        known_total = None if total == _MAX_U64 else total
        return cls(image, round_, FrameKind(kind), item, part, origin, offset, size, known_total)

    @staticmethod
    def is_sound(memory: memoryview) -> bool:
        """Whether header and bytes are those that were sealed."""
        return bool(_fingerprint(memory) == _FINGERPRINT.unpack_from(memory, _LAYOUT.size)[0])


def _fingerprint(memory: memoryview) -> int:
    return int(xxhash.xxh3_64_intdigest(memory[HEADER_SIZE:], xxhash.xxh3_64_intdigest(memory[: _LAYOUT.size])))
