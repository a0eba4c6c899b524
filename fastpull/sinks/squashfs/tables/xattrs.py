"""The tables of extended attributes: sets of names and values, each set once.

Spec: squashfs-tools-ng doc/format.adoc, Xattr Table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from fastpull.sinks.squashfs.format.metadata import MetadataWriter
from fastpull.sinks.squashfs.format.superblock import NO_TABLE, Unstorable
from fastpull.sinks.squashfs.tables.lookup import lookup_table

Set = tuple[tuple[bytes, bytes], ...]

PREFIXES = (b"user.", b"trusted.", b"security.")
"""By their number; attributes of other namespaces, such as POSIX ACLs, cannot be stored."""

MAX_NAME = 255
MAX_VALUE = 65_536
"""Bytes of an attribute that Linux allows; the format has room for more."""

_ELSEWHERE = 0x100
_REFERENCE_SIZE = 8

_KEY = struct.Struct("<HH")
_VALUE = struct.Struct("<I")
_VALUE_ELSEWHERE = struct.Struct("<IQ")
_SET = struct.Struct("<QII")
_HEAD = struct.Struct("<QII")


def is_storable(name: bytes) -> bool:
    """Whether the format has a place for an attribute of this name."""
    return any(name.startswith(prefix) and len(name) > len(prefix) for prefix in PREFIXES)


class XattrTable:
    """All sets of attributes.

    A value that is longer than a reference is stored once, and referred to from then on.

    Args:
        compress: for one metadata block.
    """

    def __init__(self, compress: Callable[[bytes], bytes]) -> None:
        self._compress = compress
        self._pairs = MetadataWriter(compress)
        self._sets: dict[Set, int] = {}
        self._rows: list[bytes] = []
        self._values: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._sets)

    def add(self, xattrs: Set) -> int:
        """The number of a set, which is stored if it is new.

        Args:
            xattrs: names that are storable and their values, at least one, in a fixed order.

        Raises:
            Unstorable: a name or a value is longer than Linux has them.
        """
        number = self._sets.get(xattrs)
        if number is None:
            if any(len(name) > MAX_NAME or len(value) > MAX_VALUE for name, value in xattrs):
                raise Unstorable(f"an extended attribute is longer than {MAX_NAME} and {MAX_VALUE} bytes")
            number = self._sets[xattrs] = len(self._sets)
            places = [self._pair(name, value) for name, value in xattrs]
            (block, offset), _ = places[0]
            self._rows.append(_SET.pack(block << 16 | offset, len(xattrs), sum(size for _, size in places)))
        return number

    def _pair(self, name: bytes, value: bytes) -> tuple[tuple[int, int], int]:
        """Stores a name and its value; returns where, and the size of both."""
        kind, prefix = next(pair for pair in enumerate(PREFIXES) if name.startswith(pair[1]))
        suffix = name[len(prefix) :]
        known = self._values.get(value) if len(value) > _REFERENCE_SIZE else None
        if known is not None:
            key = _KEY.pack(kind | _ELSEWHERE, len(suffix)) + suffix
            content = _VALUE_ELSEWHERE.pack(_REFERENCE_SIZE, known)
            return self._pairs.write(key + content), len(key) + len(content)
        key = _KEY.pack(kind, len(suffix)) + suffix
        place = self._pairs.write(key)
        block, offset = self._pairs.write(_VALUE.pack(len(value)) + value)
        self._values[value] = block << 16 | offset
        return place, len(key) + _VALUE.size + len(value)

    def finish(self, start: int) -> tuple[bytes, int]:
        """The tables, and where in the image the superblock finds them.

        Args:
            start: absolute offset in the image that they will begin at.
        """
        if not self._sets:
            return b"", NO_TABLE
        pairs = self._pairs.finish()
        table = lookup_table(b"".join(self._rows), start + len(pairs), self._compress)
        head = _HEAD.pack(start, len(self._sets), 0)
        return pairs + table.blocks + head + table.positions, start + len(pairs) + len(table.blocks)
