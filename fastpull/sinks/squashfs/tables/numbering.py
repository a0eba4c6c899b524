"""The order in which the inodes of a tree are written, and the inode number of every directory.

A directory comes after its content, so that its listing can refer to written inodes. But the inode of a subdirectory
contains the number of its parent, so all numbers are determined before the first inode is written.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpull.errors import OutputError, printable
from fastpull.layers.tree import DirectoryNode
from fastpull.sinks.squashfs.format.superblock import MAX_U32

if TYPE_CHECKING:
    from fastpull.layers.tree import Origin, Tree
    from fastpull.sinks.squashfs.format.directories import DirectoryEntry


class NumberedDirectory:
    """A directory of the tree.

    Attributes:
        name: the name in its parent.
        node: the node of the tree.
        parent: the parent directory; None for the root.
        subdirectories: the subdirectories by name.
        number: the inode number.
        entry: the entry in its parent's listing, once the inode is written.
    """

    __slots__ = ("entry", "name", "node", "number", "parent", "subdirectories")

    def __init__(self, name: bytes, node: DirectoryNode, parent: NumberedDirectory | None) -> None:
        self.name = name
        self.node = node
        self.parent = parent
        self.subdirectories: dict[bytes, NumberedDirectory] = {}
        self.number = 0
        self.entry: DirectoryEntry | None = None

    def path(self, name: bytes = b"") -> bytes:
        """Return the path of the directory, or of a name in it."""
        parts, directory = [name] if name else [], self
        while directory.parent is not None:
            parts.append(directory.name)
            directory = directory.parent
        return b"/".join(reversed(parts))


@dataclass(frozen=True, slots=True)
class Numbering:
    """A tree in the order of writing: for each directory its non-directories by name, then the directory itself.

    Attributes:
        directories: all directories, each after its subdirectories; the root is last.
        link_counts: the number of names of each inode with several names.
        inodes: the number of inodes.
    """

    directories: list[NumberedDirectory]
    link_counts: dict[Origin, int]
    inodes: int


def number_tree(tree: Tree) -> Numbering:
    """Number the inodes of a tree.

    Raises:
        OutputError: the tree has more inodes than the format allows.
    """
    directories, pending = [], [NumberedDirectory(b"", tree.root, None)]
    while pending:
        directory = pending.pop()
        directories.append(directory)
        children = [(name, node) for name, node in directory.node.children.items() if isinstance(node, DirectoryNode)]
        directory.subdirectories = {name: NumberedDirectory(name, node, directory) for name, node in sorted(children)}
        pending.extend(directory.subdirectories.values())
    directories.reverse()
    seen = [bytearray(len(index)) for index in tree.indexes]
    link_counts: dict[Origin, int] = {}
    inodes = 0
    for directory in directories:
        for child in directory.node.children.values():
            if not isinstance(child, DirectoryNode):
                # inlined accessors: function calls made this loop slower
                is_seen, entry = seen[child >> 32], child & 0xFFFFFFFF
                if is_seen[entry]:
                    link_counts[child] = link_counts.get(child, 1) + 1
                else:
                    is_seen[entry] = 1
                    inodes += 1
        inodes += 1
        directory.number = inodes
    if inodes >= MAX_U32:  # the root's parent field has the number after the last
        raise OutputError(printable(b""), f"more than {MAX_U32 - 1} inodes", errno.EOVERFLOW)
    return Numbering(directories, link_counts, inodes)
