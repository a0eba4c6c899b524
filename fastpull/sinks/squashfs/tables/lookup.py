"""The tables that are looked up by number: metadata blocks, and behind them a list of where each block is.

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
        start: absolute offset in the image.
        word: its size on the disk, and whether it is raw; as for a data block.
    """

    start: int
    word: int


@dataclass(frozen=True, slots=True)
class LookupTable:
    """A table as it stands in the image.

    Attributes:
        blocks: the metadata blocks.
        positions: absolute offset of each; the superblock says where this list begins.
    """

    blocks: bytes
    positions: bytes


def lookup_table(content: bytes, start: int, compress: Callable[[bytes], bytes]) -> LookupTable:
    """Packs a table.

    Args:
        content: the rows, one after the other; there may be none.
        start: absolute offset in the image that the table will begin at.
        compress: for one metadata block.
    """
    writer = MetadataWriter(compress)
    writer.write(content)
    blocks = writer.finish()
    starts = [start + at for at in writer.starts()]
    return LookupTable(blocks, struct.pack(f"<{len(starts)}Q", *starts))


def fragment_rows(fragments: Iterable[Fragment]) -> bytes:
    """The rows of the fragment table."""
    return b"".join(_FRAGMENT.pack(fragment.start, fragment.word, 0) for fragment in fragments)


class IdTable:
    """Every uid and gid once: inodes have 16 bits for their position here."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._positions)

    def position(self, number: int) -> int:
        """The position of a uid or gid, which is added if it is new.

        Raises:
            Unstorable: there is no room for one more.
        """
        found = self._positions.get(number)
        if found is None:
            found = len(self._positions)
            if found == MAX_IDS:
                raise Unstorable(f"more than {MAX_IDS} different uids and gids")
            self._positions[number] = found
        return found

    def rows(self) -> bytes:
        """The rows of the table."""
        return struct.pack(f"<{len(self._positions)}I", *self._positions)
