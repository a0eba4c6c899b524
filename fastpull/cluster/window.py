"""Windows: what travels between ranks, a piece of a blob with a header that says where it belongs."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Self

import xxhash

from fastpull.cluster.fabric import HEADER_SIZE

_LAYOUT = struct.Struct("<4sIIIIIQQQ")
_MAGIC = b"fpw1"


@dataclass(frozen=True, slots=True)
class Window:
    """A piece of a blob.

    Attributes:
        image: number of the image within the job.
        round: of the exchange of this image: see `fastpull.cluster.exchange`.
        blob: number of the blob within the image.
        stretch: number of the stretch that it is of.
        origin: the rank that fetched or read it.
        offset: within the blob, in bytes.
        size: in bytes.
    """

    image: int
    round: int
    blob: int
    stretch: int
    origin: int
    offset: int
    size: int

    def seal(self, memory: memoryview) -> memoryview:
        """Writes the header in front of the bytes, which stand behind `HEADER_SIZE`; returns what is to be sent."""
        stop = HEADER_SIZE + self.size
        fingerprint = xxhash.xxh3_64_intdigest(memory[HEADER_SIZE:stop])
        fields = self.image, self.round, self.blob, self.stretch, self.origin
        _LAYOUT.pack_into(memory, 0, _MAGIC, *fields, self.offset, self.size, fingerprint)
        return memory[:stop]

    @classmethod
    def open(cls, memory: memoryview) -> Self:
        """Reads a header.

        Raises:
            ValueError: it is none.
        """
        if len(memory) < HEADER_SIZE:
            raise ValueError(f"{len(memory)} bytes are no window")
        magic, image, round_, blob, stretch, origin, offset, size, _ = _LAYOUT.unpack_from(memory)
        if magic != _MAGIC or size != len(memory) - HEADER_SIZE:
            raise ValueError("its header is damaged")
        return cls(image, round_, blob, stretch, origin, offset, size)

    @staticmethod
    def is_sound(memory: memoryview) -> bool:
        """Whether header and bytes are those that were sealed."""
        return bool(xxhash.xxh3_64_intdigest(memory[HEADER_SIZE:]) == _LAYOUT.unpack_from(memory)[-1])
