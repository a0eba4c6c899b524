"""The index of a layer: all its entries, stored in columns."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from operator import le
from typing import NamedTuple, Self

from fastpull.layers.entry import Entry, EntryType
from fastpull.oci.digest import Digest

_MAGIC = b"fastpull index 1\n"


class Columns(NamedTuple):
    """A table of entries: one column per field, in native byte order.

    ``paths`` and ``links`` are concatenated names; ``path_ends`` and ``link_ends`` are the end offsets of each name.
    ``xattrs`` is a sequence of records: entry number, length of name, length of value (four bytes each), name, value.
    """

    types: bytes
    modes: bytes
    uids: bytes
    gids: bytes
    mtimes: bytes
    sizes: bytes
    devices: bytes
    path_ends: bytes
    paths: bytes
    link_ends: bytes
    links: bytes
    xattrs: bytes


class LayerIndex(Sequence[Entry]):
    """The entries of one layer in the order of its tar, about 45 bytes each and their names.

    `Entry` objects are created on access; loops over all entries use the columns.

    Attributes:
        blob: digest of the layer's blob, for messages and as the key of the index.
        diff_id: digest of the uncompressed layer, computed while it was scanned.
        size: size of the uncompressed layer, in bytes.
        columns: the table.
        types, modes, uids, gids, mtimes, sizes, devices: the columns as sequences of integers; a device is
            ``major << 32 | minor``.
    """

    def __init__(self, blob: Digest, diff_id: Digest, size: int, columns: Columns) -> None:
        self.blob = blob
        self.diff_id = diff_id
        self.size = size
        self.columns = columns
        self.types = memoryview(columns.types).cast("B")
        self.modes = memoryview(columns.modes).cast("B").cast("H")
        self.uids = memoryview(columns.uids).cast("B").cast("I")
        self.gids = memoryview(columns.gids).cast("B").cast("I")
        self.mtimes = memoryview(columns.mtimes).cast("B").cast("q")
        self.sizes = memoryview(columns.sizes).cast("B").cast("q")
        self.devices = memoryview(columns.devices).cast("B").cast("Q")
        self._path_ends = memoryview(columns.path_ends).cast("B").cast("I")
        self._link_ends = memoryview(columns.link_ends).cast("B").cast("I")

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Self:
        """Return an index of entries that come from no layer."""
        rows = list(entries)

        def ends(names: Iterable[bytes]) -> bytes:
            total, found = 0, []
            for name in names:
                total += len(name)
                found.append(total)
            return struct.pack(f"={len(found)}I", *found)

        def column(form: str, values: Iterable[int]) -> bytes:
            return struct.pack(f"={len(rows)}{form}", *values)

        xattrs = b"".join(
            struct.pack("=III", number, len(name), len(value)) + name + value
            for number, row in enumerate(rows)
            for name, value in row.xattrs
        )
        columns = Columns(
            column("B", (row.type for row in rows)),
            column("H", (row.mode for row in rows)),
            column("I", (row.uid for row in rows)),
            column("I", (row.gid for row in rows)),
            column("q", (row.mtime for row in rows)),
            column("q", (row.size for row in rows)),
            column("Q", (row.device[0] << 32 | row.device[1] for row in rows)),
            ends(row.path for row in rows),
            b"".join(row.path for row in rows),
            ends(row.linkname for row in rows),
            b"".join(row.linkname for row in rows),
            xattrs,
        )
        return cls(Digest.of(b""), Digest.of(b""), 0, columns)

    def __len__(self) -> int:
        return len(self.types)

    def __getitem__(self, number: int) -> Entry:  # type: ignore[override]  # slices have no user
        device = self.devices[number]
        return Entry(
            self.path(number),
            EntryType(self.types[number]),
            self.modes[number],
            self.uids[number],
            self.gids[number],
            self.mtimes[number],
            self.sizes[number],
            self.link(number),
            (device >> 32, device & 0xFFFFFFFF),
            self.xattrs.get(number, ()),
        )

    def path(self, number: int) -> bytes:
        """Return the path of an entry."""
        start = self._path_ends[number - 1] if number else 0
        return self.columns.paths[start : self._path_ends[number]]

    def link(self, number: int) -> bytes:
        """Return the target of a link; empty for other entries."""
        start = self._link_ends[number - 1] if number else 0
        return self.columns.links[start : self._link_ends[number]]

    def paths(self) -> Iterator[bytes]:
        """Yield the paths of all entries."""
        names, start = self.columns.paths, 0
        for end in self._path_ends:
            yield names[start:end]
            start = end

    @cached_property
    def xattrs(self) -> dict[int, tuple[tuple[bytes, bytes], ...]]:
        """Extended attributes by entry number, sorted by name.

        As in all pax records, the last record of a name applies, and a record without a value removes the name.
        """
        records, at = self.columns.xattrs, 0
        found: dict[int, dict[bytes, bytes]] = {}
        while at < len(records):
            number, name_size, value_size = struct.unpack_from("=III", records, at)
            at += 12
            name, value = records[at : at + name_size], records[at + name_size : at + name_size + value_size]
            at += name_size + value_size
            found.setdefault(number, {})[name] = value
        return {
            number: tuple(sorted((name, value) for name, value in values.items() if value))
            for number, values in found.items()
        }

    def check(self) -> None:
        """Check that the columns are consistent; an index from the cache may come from another process.

        Raises:
            ValueError: the columns are inconsistent.
        """
        count = len(self)
        columns = (self.modes, self.uids, self.gids, self.mtimes, self.sizes, self.devices)
        if any(len(column) != count for column in columns):
            raise ValueError("the columns of its index have different lengths")
        for ends, names in ((self._path_ends, self.columns.paths), (self._link_ends, self.columns.links)):
            is_sorted = all(map(le, ends, islice(ends, 1, None)))
            if len(ends) != count or not is_sorted or (ends[-1] if count else 0) != len(names):
                raise ValueError("the names of its index do not end where they should")
        if max(self.types, default=0) > max(EntryType) or min(self.sizes, default=0) < 0:
            raise ValueError("its index has an entry that cannot be")
        try:
            if max(self.xattrs, default=-1) >= count:
                raise ValueError("its index has attributes of no entry")
        except struct.error as error:
            raise ValueError("its index has attributes that are cut off") from error

    def owned_by_one(self) -> LayerIndex:
        """Return an index with owner 0:0 for all entries, with files and directories accessible to their owner."""
        extra = [0o600] * len(EntryType)
        extra[EntryType.DIRECTORY] = 0o700
        extra[EntryType.SYMLINK] = 0
        modes = (mode | extra[type_] for mode, type_ in zip(self.modes, self.types, strict=True))
        root = bytes(len(self.columns.uids))
        packed = struct.pack(f"={len(self)}H", *modes)
        return LayerIndex(self.blob, self.diff_id, self.size, self.columns._replace(modes=packed, uids=root, gids=root))

    def to_bytes(self) -> bytes:
        """Return the index as a file: a magic line, a JSON line, and the columns."""
        head = {
            "byte_order": sys.byteorder,
            "blob": str(self.blob),
            "diff_id": str(self.diff_id),
            "size": self.size,
            "columns": [len(column) for column in self.columns],
        }
        return b"".join((_MAGIC, json.dumps(head).encode(), b"\n", *self.columns))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Return the index that `to_bytes` wrote. The caller must have verified the bytes.

        Raises:
            ValueError: the format or the byte order differs.
        """
        try:
            return cls._parse(content)
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"no index of this version: {error!r}") from error

    @classmethod
    def _parse(cls, content: bytes) -> Self:
        if not content.startswith(_MAGIC):
            raise ValueError("no index of this version")
        end = content.index(b"\n", len(_MAGIC))
        head = json.loads(content[len(_MAGIC) : end])
        if head["byte_order"] != sys.byteorder:
            raise ValueError("written by a machine of another byte order")
        columns, at = [], end + 1
        for length in head["columns"]:
            columns.append(content[at : at + length])
            at += length
        return cls(Digest.parse(head["blob"]), Digest.parse(head["diff_id"]), head["size"], Columns(*columns))
