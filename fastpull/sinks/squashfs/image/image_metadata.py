"""The metadata of an image: everything but the blocks of data, made of a tree and of where its files' payloads are.

::

    number the tree
    for each directory, those inside it first:
        write the inodes of what is in it, its listing, its own inode
    join the tables; the superblock says where each is
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
    """What an image consists of besides its data.

    Attributes:
        superblock: to be written at the beginning, last of all.
        pieces: to be written behind the data, one after the other; padded, so that the image ends where they do.
        inodes: how many there are; names of one inode count once.
        clamped_times: how many of them had a time that the format cannot hold, and have the nearest that it can.
        dropped_xattrs: how many attributes were left out.
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
    """Makes the metadata of an image. The same arguments make the same bytes.

    Args:
        tree: what the image has to be.
        layout: where the payload of a file is; asked once for each file that is not empty.
        fragments: the fragment blocks; each holds the tail of a file of the tree at least, for readers refuse images
            with more of them than inodes.
        block_size: of data, in bytes.
        compressor: of data and metadata.
        data_end: where in the image the data ends, and the tables begin.
        time: of the image, in seconds since the epoch; clamped to what the format can hold.
        mtime: takes the place of all times in the tree, if it is given.
        flags: of the superblock; those that follow from the compressor are added.
        check: called once for each directory; what it raises ends the work.

    Raises:
        OutputError: the tree holds something that the format cannot; it names the path.
        ValueError: the block size is none.

    Spec: squashfs-tools-ng doc/format.adoc.
    """
    fmt.check_block_size(block_size)
    numbering = number_tree(tree)
    if len(fragments) > numbering.inodes:
        raise AssertionError(f"{len(fragments)} fragment blocks are more than {numbering.inodes} inodes can use")
    inodes = InodeTable(
        tree, numbering, layout, block_size=block_size, compress=compressor.compress_metadata, mtime=mtime
    )
    for folder in numbering.folders:
        check()
        inodes.write(folder)
    root = numbering.folders[-1].entry
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
    """Puts the tables one behind the other, without gaps."""
    inode_table, directory_table = inodes.inodes.finish(), inodes.listings.finish()
    directory_start = start + len(inode_table)
    at = directory_start + len(directory_table)
    fragment_table = lookup_table(fragment_rows(fragments), at, compress)
    fragment_start = at + len(fragment_table.blocks)  # also where there are none: unsquashfs wants a place in the image
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
