"""The metadata of an image: everything except the data, made from a tree and the layouts of its files.

::

    number the tree
    for each directory, subdirectories first:
        write the inodes of its non-directories, its listing, its own inode
    join the tables; the superblock has the offset of each
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpull.sinks.squashfs.format import superblock as fmt
from fastpull.sinks.squashfs.tables.inode_table import InodeTable
from fastpull.sinks.squashfs.tables.lookup import Fragment, fragment_rows, lookup_table
from fastpull.sinks.squashfs.tables.numbering import number_tree

if TYPE_CHECKING:
    from fastpull.layers.tree import Origin, Tree
    from fastpull.sinks.squashfs.blocks.compressors import Compressor
    from fastpull.sinks.squashfs.format.inodes import FileLayout


@dataclass(slots=True)
class ImageMetadata:
    """The metadata of an image.

    Attributes:
        superblock: the superblock, to write at offset 0 after everything else.
        pieces: the bytes to write behind the data, one after the other, padding included.
        inodes: the number of inodes; hard links count once.
        clamped_times: the number of inodes whose time was replaced by the nearest that the format can hold.
        dropped_xattrs: the number of xattrs that were left out.
    """

    superblock: bytes
    pieces: tuple[bytes, ...]
    inodes: int
    clamped_times: int = 0
    dropped_xattrs: int = 0


def make_image_metadata(
    tree: Tree,
    layout: Callable[[Origin], FileLayout],
    fragments: Sequence[Fragment],
    *,
    block_size: int,
    compressor: Compressor,
    data_end: int,
    time: int,
    mtime: int | None = None,
    flags: int = 0,
    check: Callable[[], None] = lambda: None,
) -> ImageMetadata:
    """Make the metadata of an image. Equal arguments give equal bytes.

    Args:
        tree: the content of the image.
        layout: the layout of a file's payload; called once for each non-empty file.
        fragments: the fragment blocks. Each must hold the tail-end of a file in the tree: readers refuse images with
            more fragment blocks than inodes.
        block_size: the size of data blocks, in bytes.
        compressor: the compressor of data and metadata.
        data_end: the offset at which the data ends and the tables begin.
        time: the time of the image, in seconds since the epoch; clamped to the range of the format.
        mtime: the time of all inodes; None for their own.
        flags: flags of the superblock; the flags of the compressor are added.
        check: called once for each directory; an exception from it ends the work.

    Raises:
        OutputError: the format cannot hold something in the tree; the error names its path.
        ValueError: the block size is invalid.

    Spec: squashfs-tools-ng doc/format.adoc.
    """
    fmt.check_block_size(block_size)
    numbering = number_tree(tree)
    if len(fragments) > numbering.inodes:
        raise AssertionError(f"{len(fragments)} fragment blocks are more than {numbering.inodes} inodes can use")
    inodes = InodeTable(
        tree, numbering, layout, block_size=block_size, compress=compressor.compress_metadata, mtime=mtime
    )
    for directory in numbering.directories:
        check()
        inodes.write(directory)
    root = numbering.directories[-1].entry
    assert root is not None
    options = compressor.options()
    tables = _join(inodes, fragments, data_end, compressor.compress_metadata)
    superblock = fmt.Superblock(
        inodes=numbering.inodes,
        time=fmt.clamped(time),
        block_size=block_size,
        fragments=len(fragments),
        compressor=compressor.id,
        flags=flags | compressor.flags | (fmt.HAS_OPTIONS if options else 0),
        ids=len(inodes.ids),
        root=root.block << 16 | root.offset,
        size=data_end + sum(map(len, tables.pieces)),
        id_start=tables.id_start,
        xattr_start=tables.xattr_start,
        inode_start=data_end,
        directory_start=tables.directory_start,
        fragment_start=tables.fragment_start,
    )
    padding = bytes(-superblock.size % fmt.ALIGNMENT)
    return ImageMetadata(
        superblock.to_bytes(),
        (*tables.pieces, padding),
        numbering.inodes,
        inodes.clamped_times,
        inodes.dropped_xattrs,
    )


@dataclass(frozen=True, slots=True)
class _Tables:
    pieces: tuple[bytes, ...]
    directory_start: int
    fragment_start: int
    id_start: int
    xattr_start: int


def _join(inodes: InodeTable, fragments: Sequence[Fragment], start: int, compress: Callable[[bytes], bytes]) -> _Tables:
    """Join the tables without gaps."""
    inode_table, directory_table = inodes.inodes.finish(), inodes.listings.finish()
    directory_start = start + len(inode_table)
    at = directory_start + len(directory_table)
    fragment_table = lookup_table(fragment_rows(fragments), at, compress)
    fragment_start = at + len(
        fragment_table.blocks
    )  # also without fragments: unsquashfs requires an offset in the image
    at = fragment_start + len(fragment_table.positions)
    id_table = lookup_table(inodes.ids.rows(), at, compress)
    id_start = at + len(id_table.blocks)
    at = id_start + len(id_table.positions)
    xattr_tables, xattr_start = inodes.xattrs.finish(at)
    pieces = (
        inode_table,
        directory_table,
        fragment_table.blocks,
        fragment_table.positions,
        id_table.blocks,
        id_table.positions,
        xattr_tables,
    )
    return _Tables(pieces, directory_start, fragment_start, id_start, xattr_start)
