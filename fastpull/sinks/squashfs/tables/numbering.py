"""The order in which a tree is written, and the number of every directory's inode.

A directory comes after everything in it, so that its listing can say where that is; but its inode names its parent's
number, which therefore has to be known before.
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
        name: in its parent.
        node: of the tree.
        parent: the directory it is in; None for the root.
        inside: the directories in it, by name.
        number: of its inode.
        entry: as its parent lists it, once its inode is written.
    """

    __slots__ = ("entry", "inside", "name", "node", "number", "parent")

    def __init__(self, name: bytes, node: DirectoryNode, parent: NumberedDirectory | None) -> None:
        self.name = name
        self.node = node
        self.parent = parent
        self.inside: dict[bytes, NumberedDirectory] = {}
        self.number = 0
        self.entry: DirectoryEntry | None = None

    def path(self, name: bytes = b"") -> bytes:
        """The path of the directory, or of what has a name in it."""
        parts, folder = [name] if name else [], self
        while folder.parent is not None:
            parts.append(folder.name)
            folder = folder.parent
        return b"/".join(reversed(parts))


@dataclass(frozen=True, slots=True)
class Numbering:
    """A tree in the order of writing: in each directory first what is no directory, by name, then the directory itself.

    Attributes:
        folders: all directories, each after those in it, the root last.
        names: how many names each inode has that has more than one.
        inodes: how many there are.
    """

    folders: list[NumberedDirectory]
    names: dict[Origin, int]
    inodes: int


def number_tree(tree: Tree) -> Numbering:
    """Numbers a tree.

    Raises:
        OutputError: it has more inodes than the format has numbers for.
    """
    folders, pending = [], [NumberedDirectory(b"", tree.root, None)]
    while pending:
        folder = pending.pop()
        folders.append(folder)
        inner = [(name, child) for name, child in folder.node.children.items() if isinstance(child, DirectoryNode)]
        folder.inside = {name: NumberedDirectory(name, child, folder) for name, child in sorted(inner)}
        pending.extend(folder.inside.values())
    folders.reverse()
    seen = [bytearray(len(index)) for index in tree.indexes]
    names: dict[Origin, int] = {}
    inodes = 0
    for folder in folders:
        for child in folder.node.children.values():
            if not isinstance(child, DirectoryNode):
                # an origin, taken apart inline: calls made this loop slower
                layer, number = seen[child >> 32], child & 0xFFFFFFFF
                if layer[number]:
                    names[child] = names.get(child, 1) + 1
                else:
                    layer[number] = 1
                    inodes += 1
        inodes += 1
        folder.number = inodes
    if inodes >= MAX_U32:  # the root's parent has the number after the last
        raise OutputError(printable(b""), f"more than {MAX_U32 - 1} inodes", errno.EOVERFLOW)
    return Numbering(folders, names, inodes)
