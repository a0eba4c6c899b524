"""Metadata blocks: 8192 bytes of records each, compressed, behind a header of two bytes.

Spec: squashfs-tools-ng doc/format.adoc, Packing Metadata.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from fastpull.sinks.squashfs.format.superblock import METADATA_SIZE, metadata_header


def metadata_block(data: bytes, compress: Callable[[bytes], bytes]) -> bytes:
    """Return one block with its header; raw where compression does not make it smaller."""
    packed = compress(data)
    if len(packed) < len(data):
        return metadata_header(len(packed), raw=False) + packed
    return metadata_header(len(data), raw=True) + data


class MetadataWriter:
    """Packs the records of one table. Complete blocks are kept compressed.

    Args:
        compress: the function that compresses one block.
    """

    def __init__(self, compress: Callable[[bytes], bytes]) -> None:
        self._compress = compress
        self._packed: list[bytes] = []
        self._starts = [0]  # of each block, including the block being filled
        self._start = 0
        self._pending = bytearray()

    def write(self, record: bytes) -> tuple[int, int]:
        """Append a record, which may cross the end of a block.

        Returns:
            The reference to the record: the offset of its block in the table, and its offset in the uncompressed block.
        """
        reference = self._start, len(self._pending)
        self._pending += record
        if len(self._pending) >= METADATA_SIZE:
            self._flush()
        return reference

    def block_at(self, reference: tuple[int, int], distance: int) -> int:
        """Return the offset of the block that holds the byte at a distance behind the start of a written record."""
        block, offset = reference
        return self._starts[bisect_right(self._starts, block) - 1 + (offset + distance) // METADATA_SIZE]

    def starts(self) -> list[int]:
        """Return the offset of each block. Valid after `finish`."""
        return self._starts[:-1]

    def finish(self) -> bytes:
        """Return the table. Nothing can be written afterwards."""
        if self._pending:
            self._append_block(bytes(self._pending))
            self._pending.clear()
        table = b"".join(self._packed)
        self._packed.clear()
        return table

    def _flush(self) -> None:
        whole = len(self._pending) - len(self._pending) % METADATA_SIZE
        for at in range(0, whole, METADATA_SIZE):
            self._append_block(bytes(self._pending[at : at + METADATA_SIZE]))
        del self._pending[:whole]

    def _append_block(self, data: bytes) -> None:
        self._packed.append(metadata_block(data, self._compress))
        self._start += len(self._packed[-1])
        self._starts.append(self._start)
