"""The squashfs sink: a root filesystem as one compressed image file, in four stages of one folder each.

::

    blocks/   cut, compress and store the payload of each layer while it streams
    image/    plan the image from the merged tree; copy the live blocks; write metadata and superblock
    tables/   the tables of the metadata: inodes and listings, fragments, IDs, xattrs
    format/   the records on disk: superblock, inodes, listings, metadata blocks
"""
