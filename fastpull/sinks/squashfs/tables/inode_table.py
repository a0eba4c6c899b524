"""The inode table and the directory table of a tree, with the IDs and xattrs to which their records refer."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastpull.errors import OutputError, printable
from fastpull.layers.entry import EntryType
from fastpull.layers.index import LayerIndex
from fastpull.layers.tree import DirectoryNode, entry_of, layer_of
from fastpull.layers.xattrs import is_kept
from fastpull.sinks.squashfs.format.directories import DirectoryEntry, IndexEntry, pack_listing
from fastpull.sinks.squashfs.format.inodes import (
    FileLayout,
    InodeHeader,
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

_INODE_TYPES = {
    int(EntryType.FILE): FILE,
    int(EntryType.SYMLINK): SYMLINK,
    int(EntryType.CHAR): CHAR,
    int(EntryType.BLOCK): BLOCK,
    int(EntryType.FIFO): FIFO,
}
_EMPTY_FILE = FileLayout(0, b"")


class InodeTable:
    """Writes inodes and listings.

    Args:
        tree: the tree.
        numbering: the numbering of the tree.
        layout: the layout of a file's payload.
        block_size: the size of data blocks, in bytes.
        compress: the function that compresses one metadata block.
        mtime: the time of all inodes; None for their own.

    Attributes:
        inodes, listings: the writers of the inode table and the directory table.
        ids, xattrs: the tables to which inodes refer.
        clamped_times: the number of inodes whose time the format cannot hold.
        dropped_xattrs: the number of xattrs that were left out.
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
        self._link_counts = numbering.link_counts
        self._root_parent = numbering.inodes + 1
        self._layout = layout
        self._block_size = block_size
        self._mtime = mtime
        self._number = 0
        self._linked: dict[Origin, DirectoryEntry] = {}

    def write(self, directory: NumberedDirectory) -> None:
        """Write the inodes of a directory's non-directories, and then its own.

        Must be called once for each directory, in the order of the numbering.

        Raises:
            OutputError: the format cannot hold something; the error names its path.
        """
        entries, name = [], b""
        try:
            for name in sorted(directory.node.children):
                entries.append(self._entry(directory, name))  # noqa: PERF401  # the error needs the name
            name = b""
            self._write_directory(directory, entries)
        except Unstorable as error:
            raise OutputError(printable(directory.path(name) or b"/"), str(error), errno.EOVERFLOW) from None

    def _entry(self, directory: NumberedDirectory, name: bytes) -> DirectoryEntry:
        """Return the directory entry of a name; its inode is written here unless it was written before."""
        if len(name) > MAX_NAME:
            raise Unstorable(f"a name of more than {MAX_NAME} bytes")
        child = directory.node.children[name]
        if isinstance(child, DirectoryNode):
            entry = directory.subdirectories[name].entry
            assert entry is not None
            return entry
        linked = self._linked.get(child)
        return linked._replace(name=name) if linked else self._write_leaf(name, child)

    def _write_directory(self, directory: NumberedDirectory, entries: list[DirectoryEntry]) -> None:
        origin = directory.node.origin
        index, number = self._undescribed, 0
        if origin is not None:
            index, number = self._indexes[layer_of(origin)], entry_of(origin)
        content, points = pack_listing(entries)
        reference = self.listings.write(content)
        record = directory_inode(
            self._header(index, number, index.modes[number]),
            2 + len(directory.subdirectories),
            reference,
            len(content),
            len(entries),
            [IndexEntry(offset, self.listings.block_at(reference, offset), name) for offset, name in points],
            directory.parent.number if directory.parent else self._root_parent,
            self._xattrs(index, number) if number in index.xattrs else NO_XATTRS,
        )
        assert self._number == directory.number
        block, offset = self.inodes.write(record)
        directory.entry = DirectoryEntry(directory.name, block, offset, self._number, DIRECTORY)

    def _write_leaf(self, name: bytes, origin: Origin) -> DirectoryEntry:
        index, number = self._indexes[layer_of(origin)], entry_of(origin)
        inode_type = _INODE_TYPES[index.types[number]]
        nlink = self._link_counts.get(origin, 1)
        header = self._header(index, number, 0o777 if inode_type == SYMLINK else index.modes[number])
        xattrs = self._xattrs(index, number) if number in index.xattrs else NO_XATTRS
        if inode_type == FILE:
            size = index.sizes[number]
            layout = self._checked_layout(origin, size) if size else _EMPTY_FILE
            record = file_inode(header, nlink, size, layout, xattrs)
        elif inode_type == SYMLINK:
            record = symlink_inode(header, nlink, index.link(number), xattrs)
        elif inode_type == FIFO:
            record = fifo_inode(header, nlink, xattrs)
        else:
            device = index.devices[number]
            encoded = device_number(device >> 32, device & 0xFFFFFFFF)
            record = device_inode(header, nlink, inode_type == BLOCK, encoded, xattrs)
        block, offset = self.inodes.write(record)
        entry = DirectoryEntry(name, block, offset, header.number, inode_type)
        if nlink > 1:
            self._linked[origin] = entry
        return entry

    def _header(self, index: LayerIndex, number: int, mode: int) -> InodeHeader:
        """Return the header of an inode, with the next inode number."""
        mtime = index.mtimes[number] if self._mtime is None else self._mtime
        if mtime != clamped(mtime):
            self.clamped_times += 1
            mtime = clamped(mtime)
        self._number += 1
        position = self.ids.position
        return InodeHeader(mode, position(index.uids[number]), position(index.gids[number]), mtime, self._number)

    def _checked_layout(self, origin: Origin, size: int) -> FileLayout:
        """Return the layout of a file. Readers would take missing block words from the next inode."""
        found = self._layout(origin)
        blocks = size // self._block_size if found.fragment != NO_FRAGMENT else -(-size // self._block_size)
        if len(found.words) != 4 * blocks:
            raise AssertionError(f"{len(found.words)} bytes of block words for a file of {size} bytes")
        return found

    def _xattrs(self, index: LayerIndex, number: int) -> int:
        """Return the number of an inode's xattr set."""
        found, entry_type = index.xattrs[number], EntryType(index.types[number])
        kept = tuple((name, value) for name, value in found if is_kept(name, value, entry_type) and is_storable(name))
        self.dropped_xattrs += len(found) - len(kept)
        return self.xattrs.add(kept) if kept else NO_XATTRS
