"""The inode table and the directory table of a tree, and what their records refer to: ids and attributes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastpull.errors import OutputError, printable
from fastpull.layers.entry import EntryType
from fastpull.layers.index import LayerIndex
from fastpull.layers.tree import DirectoryNode, entry_of, layer_of
from fastpull.layers.xattrs import is_kept
from fastpull.sinks.squashfs.format.directories import DirectoryEntry, IndexEntry, listing
from fastpull.sinks.squashfs.format.inodes import (
    Common,
    FileLayout,
    device_inode,
    device_number,
    directory_inode,
    fifo_inode,
    file_inode,
    symlink_inode,
)
from fastpull.sinks.squashfs.format.metadata import MetadataWriter
from fastpull.sinks.squashfs.format.superblock import (
    BLOCK,
    CHAR,
    DIRECTORY,
    FIFO,
    FILE,
    MAX_NAME,
    NO_FRAGMENT,
    NO_XATTRS,
    SYMLINK,
    Unstorable,
    clamped,
)
from fastpull.sinks.squashfs.tables.lookup import IdTable
from fastpull.sinks.squashfs.tables.xattrs import XattrTable, is_storable

if TYPE_CHECKING:
    from fastpull.layers.tree import Origin, Tree
    from fastpull.sinks.squashfs.tables.numbering import NumberedDirectory, Numbering

_BASIC = {
    int(EntryType.FILE): FILE,
    int(EntryType.SYMLINK): SYMLINK,
    int(EntryType.CHAR): CHAR,
    int(EntryType.BLOCK): BLOCK,
    int(EntryType.FIFO): FIFO,
}
_EMPTY = FileLayout(0, b"")


class InodeTable:
    """Writes inodes and listings.

    Args:
        tree: the tree.
        numbering: of the tree.
        layout: where the payload of a file is.
        block_size: of data, in bytes.
        compress: for one metadata block.
        mtime: takes the place of all times in the tree, if it is given.

    Attributes:
        inodes, listings: the two tables.
        ids, xattrs: what inodes refer to.
        clamped_times: how many inodes have a time that the format cannot hold.
        dropped_xattrs: how many attributes were left out.
    """

    def __init__(
        self,
        tree: Tree,
        numbering: Numbering,
        layout: Callable[[Origin], FileLayout],
        *,
        block_size: int,
        compress: Callable[[bytes], bytes],
        mtime: int | None,
    ) -> None:
        self.inodes = MetadataWriter(compress)
        self.listings = MetadataWriter(compress)
        self.ids = IdTable()
        self.xattrs = XattrTable(compress)
        self.clamped_times = 0
        self.dropped_xattrs = 0
        self._indexes = tree.indexes
        self._undescribed = LayerIndex.of([tree.entry(DirectoryNode())])
        self._names = numbering.names
        self._root_parent = numbering.inodes + 1
        self._layout = layout
        self._block_size = block_size
        self._mtime = mtime
        self._number = 0
        self._linked: dict[Origin, DirectoryEntry] = {}

    def write(self, folder: NumberedDirectory) -> None:
        """Writes what is in a directory, save the directories in it, and then the directory.

        To be called once for each directory, in the order of the numbering.

        Raises:
            OutputError: the format cannot hold something; it names the path.
        """
        entries, name = [], b""
        try:
            for name in sorted(folder.node.children):
                entries.append(self._entry(folder, name))  # noqa: PERF401  # the error needs the name
            name = b""
            self._write_folder(folder, entries)
        except Unstorable as error:
            raise OutputError(printable(folder.path(name) or b"/"), str(error), errno.EOVERFLOW) from None

    def _entry(self, folder: NumberedDirectory, name: bytes) -> DirectoryEntry:
        """What a directory lists, written before unless it has to be now."""
        if len(name) > MAX_NAME:
            raise Unstorable(f"a name of more than {MAX_NAME} bytes")
        child = folder.node.children[name]
        if isinstance(child, DirectoryNode):
            entry = folder.inside[name].entry
            assert entry is not None
            return entry
        linked = self._linked.get(child)
        return linked._replace(name=name) if linked else self._write_leaf(name, child)

    def _write_folder(self, folder: NumberedDirectory, entries: list[DirectoryEntry]) -> None:
        origin = folder.node.origin
        index, number = self._undescribed, 0
        if origin is not None:
            index, number = self._indexes[layer_of(origin)], entry_of(origin)
        content, points = listing(entries)
        place = self.listings.write(content)
        record = directory_inode(
            self._common(index, number, index.modes[number]),
            2 + len(folder.inside),
            place,
            len(content),
            len(entries),
            [IndexEntry(offset, self.listings.block_at(place, offset), name) for offset, name in points],
            folder.parent.number if folder.parent else self._root_parent,
            self._xattrs(index, number) if number in index.xattrs else NO_XATTRS,
        )
        assert self._number == folder.number
        block, offset = self.inodes.write(record)
        folder.entry = DirectoryEntry(folder.name, block, offset, self._number, DIRECTORY)

    def _write_leaf(self, name: bytes, origin: Origin) -> DirectoryEntry:
        index, number = self._indexes[layer_of(origin)], entry_of(origin)
        kind = _BASIC[index.types[number]]
        nlink = self._names.get(origin, 1)
        common = self._common(index, number, 0o777 if kind == SYMLINK else index.modes[number])
        xattrs = self._xattrs(index, number) if number in index.xattrs else NO_XATTRS
        if kind == FILE:
            size = index.sizes[number]
            record = file_inode(common, nlink, size, self._place(origin, size) if size else _EMPTY, xattrs)
        elif kind == SYMLINK:
            record = symlink_inode(common, nlink, index.link(number), xattrs)
        elif kind == FIFO:
            record = fifo_inode(common, nlink, xattrs)
        else:
            device = index.devices[number]
            encoded = device_number(device >> 32, device & 0xFFFFFFFF)
            record = device_inode(common, nlink, kind == BLOCK, encoded, xattrs)
        block, offset = self.inodes.write(record)
        entry = DirectoryEntry(name, block, offset, common.number, kind)
        if nlink > 1:
            self._linked[origin] = entry
        return entry

    def _common(self, index: LayerIndex, number: int, mode: int) -> Common:
        """What all inodes have, with the next inode number."""
        mtime = index.mtimes[number] if self._mtime is None else self._mtime
        if mtime != clamped(mtime):
            self.clamped_times += 1
            mtime = clamped(mtime)
        self._number += 1
        position = self.ids.position
        return Common(mode, position(index.uids[number]), position(index.gids[number]), mtime, self._number)

    def _place(self, origin: Origin, size: int) -> FileLayout:
        """Where a file's payload is; a wrong count of words would be read as a part of the next inode."""
        found = self._layout(origin)
        whole = size // self._block_size if found.fragment != NO_FRAGMENT else -(-size // self._block_size)
        if len(found.words) != 4 * whole:
            raise AssertionError(f"{len(found.words)} bytes of words for a file of {size} bytes")
        return found

    def _xattrs(self, index: LayerIndex, number: int) -> int:
        """The number of an inode's attributes."""
        found, kind = index.xattrs[number], EntryType(index.types[number])
        kept = tuple((name, value) for name, value in found if is_kept(name, value, kind) and is_storable(name))
        self.dropped_xattrs += len(found) - len(kept)
        return self.xattrs.add(kept) if kept else NO_XATTRS
