"""The tables of extended attributes (xattrs): each set of names and values is stored once.

Spec: squashfs-tools-ng doc/format.adoc, Xattr Table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from fastpull.sinks.squashfs.format.metadata import MetadataWriter
from fastpull.sinks.squashfs.format.superblock import NO_TABLE, Unstorable
from fastpull.sinks.squashfs.tables.lookup import lookup_table

XattrSet = tuple[tuple[bytes, bytes], ...]

PREFIXES = (b"user.", b"trusted.", b"security.")
"""The namespaces by their number. Xattrs of other namespaces, such as POSIX ACLs, cannot be stored."""

MAX_NAME = 255
MAX_VALUE = 65_536
"""The limits of Linux for an xattr, in bytes; the format allows more."""

_OUT_OF_LINE = 0x100
_REFERENCE_SIZE = 8

_KEY = struct.Struct("<HH")
_VALUE = struct.Struct("<I")
_VALUE_REFERENCE = struct.Struct("<IQ")
_SET = struct.Struct("<QII")
_HEAD = struct.Struct("<QII")


def is_storable(name: bytes) -> bool:
    """Return whether the format can store an xattr of this name."""
    return any(name.startswith(prefix) and len(name) > len(prefix) for prefix in PREFIXES)


class XattrTable:
    """The table of xattr sets.

    A value longer than a reference is stored once; later uses refer to it out of line.

    Args:
        compress: the function that compresses one metadata block.
    """

    def __init__(self, compress: Callable[[bytes], bytes]) -> None:
        self._compress = compress
        self._pairs = MetadataWriter(compress)
        self._sets: dict[XattrSet, int] = {}
        self._rows: list[bytes] = []
        self._values: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._sets)

    def add(self, xattrs: XattrSet) -> int:
        """Return the number of a set, and store it if it is new.

        Args:
            xattrs: storable names and their values, at least one, in a fixed order.

        Raises:
            Unstorable: a name or a value exceeds the limits of Linux.
        """
        number = self._sets.get(xattrs)
        if number is None:
            if any(len(name) > MAX_NAME or len(value) > MAX_VALUE for name, value in xattrs):
                raise Unstorable(
                    f"an extended attribute with a name over {MAX_NAME} bytes or a value over {MAX_VALUE} bytes"
                )
            number = self._sets[xattrs] = len(self._sets)
            pairs = [self._write_pair(name, value) for name, value in xattrs]
            (block, offset), _ = pairs[0]
            self._rows.append(_SET.pack(block << 16 | offset, len(xattrs), sum(size for _, size in pairs)))
        return number

    def _write_pair(self, name: bytes, value: bytes) -> tuple[tuple[int, int], int]:
        """Write a name and its value; return the reference to them and their size."""
        kind, prefix = next(pair for pair in enumerate(PREFIXES) if name.startswith(pair[1]))
        suffix = name[len(prefix) :]
        known = self._values.get(value) if len(value) > _REFERENCE_SIZE else None
        if known is not None:
            key = _KEY.pack(kind | _OUT_OF_LINE, len(suffix)) + suffix
            content = _VALUE_REFERENCE.pack(_REFERENCE_SIZE, known)
            return self._pairs.write(key + content), len(key) + len(content)
        key = _KEY.pack(kind, len(suffix)) + suffix
        reference = self._pairs.write(key)
        block, offset = self._pairs.write(_VALUE.pack(len(value)) + value)
        self._values[value] = block << 16 | offset
        return reference, len(key) + _VALUE.size + len(value)

    def finish(self, start: int) -> tuple[bytes, int]:
        """Return the tables, and the offset in the image for the superblock.

        Args:
            start: the absolute offset of the tables in the image.
        """
        if not self._sets:
            return b"", NO_TABLE
        pairs = self._pairs.finish()
        table = lookup_table(b"".join(self._rows), start + len(pairs), self._compress)
        head = _HEAD.pack(start, len(self._sets), 0)
        return pairs + table.blocks + head + table.positions, start + len(pairs) + len(table.blocks)
