"""Lookup tables: metadata blocks with fixed-size rows, followed by the list of the blocks' offsets.

Spec: squashfs-tools-ng doc/format.adoc, Fragment Table and ID Table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fastpull.sinks.squashfs.format.metadata import MetadataWriter
from fastpull.sinks.squashfs.format.superblock import Unstorable

MAX_IDS = 65_535

_FRAGMENT = struct.Struct("<QII")


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment block.

    Attributes:
        start: the absolute offset in the image.
        word: the block word, as of a data block: size on disk, with a bit for raw.
    """

    start: int
    word: int


@dataclass(frozen=True, slots=True)
class LookupTable:
    """A table as in the image.

    Attributes:
        blocks: the metadata blocks.
        positions: the absolute offset of each block; the superblock has the offset of this list.
    """

    blocks: bytes
    positions: bytes


def lookup_table(content: bytes, start: int, compress: Callable[[bytes], bytes]) -> LookupTable:
    """Pack a table.

    Args:
        content: the rows, one after the other; may be empty.
        start: the absolute offset of the table in the image.
        compress: the function that compresses one metadata block.
    """
    writer = MetadataWriter(compress)
    writer.write(content)
    blocks = writer.finish()
    starts = [start + at for at in writer.starts()]
    return LookupTable(blocks, struct.pack(f"<{len(starts)}Q", *starts))


def fragment_rows(fragments: Iterable[Fragment]) -> bytes:
    """Return the rows of the fragment table."""
    return b"".join(_FRAGMENT.pack(fragment.start, fragment.word, 0) for fragment in fragments)


class IdTable:
    """The uids and gids, each once. Inodes refer to them by a position of 16 bits."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._positions)

    def position(self, number: int) -> int:
        """Return the position of a uid or gid, and add it if it is new.

        Raises:
            Unstorable: the table is full.
        """
        found = self._positions.get(number)
        if found is None:
            found = len(self._positions)
            if found == MAX_IDS:
                raise Unstorable(f"more than {MAX_IDS} different uids and gids")
            self._positions[number] = found
        return found

    def rows(self) -> bytes:
        """Return the rows of the table."""
        return struct.pack(f"<{len(self._positions)}I", *self._positions)
