"""Frames: pieces of blobs or of layer artifacts, each with a header that says what it is a piece of."""

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
    """The kind of content that a frame is a piece of."""

    BLOB = 0
    ARTIFACT = 1


@dataclass(frozen=True, slots=True)
class Frame:
    """The header of a frame.

    Attributes:
        image: the number of the image within the job.
        round: the round of this image's exchange; see `fastpull.cluster.blobs.exchange`.
        kind: the kind of content.
        item: the number of the blob within the image, or of the file within all artifacts.
        part: the number of the blob's chunk, or the generation of the artifact.
        origin: the rank that fetched, read or built the content.
        offset: the position within the item, in bytes.
        size: the size of the payload, in bytes.
        total: the size of the item in bytes; None if the sender does not know it yet.
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

    def pack(self, memory: memoryview) -> memoryview:
        """Write the header before the payload, which begins at `HEADER_SIZE`; return the bytes to send."""
        stop = HEADER_SIZE + self.size
        fields = self.image, self.round, self.kind, self.item, self.part, self.origin
        total = _MAX_U64 if self.total is None else self.total
        _LAYOUT.pack_into(memory, 0, _MAGIC, *fields, self.offset, self.size, total)
        _FINGERPRINT.pack_into(memory, _LAYOUT.size, _fingerprint(memory[:stop]))
        return memory[:stop]

    @classmethod
    def unpack(cls, memory: memoryview) -> Self:
        """Return the header of a frame.

        Raises:
            ValueError: the memory holds no frame.
        """
        if len(memory) < HEADER_SIZE:
            raise ValueError(f"{len(memory)} bytes are too few for a frame")
        magic, image, round_, kind, item, part, origin, offset, size, total = _LAYOUT.unpack_from(memory)
        if magic != _MAGIC or size != len(memory) - HEADER_SIZE:
            raise ValueError("its header is damaged")
        known_total = None if total == _MAX_U64 else total
        return cls(image, round_, FrameKind(kind), item, part, origin, offset, size, known_total)

    @staticmethod
    def is_intact(memory: memoryview) -> bool:
        """Return whether header and payload match the fingerprint in the header."""
        return bool(_fingerprint(memory) == _FINGERPRINT.unpack_from(memory, _LAYOUT.size)[0])


def _fingerprint(memory: memoryview) -> int:
    return int(xxhash.xxh3_64_intdigest(memory[HEADER_SIZE:], xxhash.xxh3_64_intdigest(memory[: _LAYOUT.size])))
