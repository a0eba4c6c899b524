"""The merged tree: which entry of which layer stands at each path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fastpull.layers.entry import Entry, EntryType
from fastpull.layers.path_walk import PathWalk, TooManySymlinks

if TYPE_CHECKING:
    from fastpull.layers.index import LayerIndex

Origin: TypeAlias = int
"""A layer and an entry as one number, ``layer << 32 | entry``: two names with one origin are links to one inode."""


def origin_of(layer: int, entry: int) -> Origin:
    """Return the origin of an entry of a layer."""
    return layer << 32 | entry


def layer_of(origin: Origin) -> int:
    """Return the number of the layer that an origin is of."""
    return origin >> 32


def entry_of(origin: Origin) -> int:
    """Return the number of the entry within the layer that an origin is of."""
    return origin & 0xFFFFFFFF


class DirectoryNode:
    """A directory of the tree.

    Attributes:
        origin: the entry that described it last; None for one that no entry described (0755 0:0, at the epoch).
        children: by name; a directory, or the origin of anything else.
    """

    __slots__ = ("children", "origin")

    def __init__(self, origin: Origin | None = None) -> None:
        self.origin = origin
        self.children: dict[bytes, DirectoryNode | Origin] = {}


Node: TypeAlias = DirectoryNode | Origin

_UNDESCRIBED = Entry(b"", EntryType.DIRECTORY, mode=0o755)
MAX_DEPTH = 255
"""Components of a path: the scanner's bound, which links must not get around."""


@dataclass(frozen=True, slots=True)
class PathLookup:
    """Where a path leads inside a tree.

    Attributes:
        path: of the place, without symbolic links, ``.`` and ``..`` on the way.
        node: what is there; None if nothing is, or if the way ends at something that is not a directory.
        blocked: what is on the way and cannot be passed: no directory, or a link too many; empty where the way is free.
    """

    path: bytes
    node: Node | None
    blocked: bytes = b""


@dataclass(slots=True)
class DirectoryLookup:
    """The result of looking up a directory.

    Attributes:
        directory: the deepest directory on the way that exists.
        missing: names below it that do not exist; empty if the directory itself exists.
        obstacle: what stands at the first missing name and is neither directory nor symbolic link.
        is_loop: more than `MAX_SYMLINKS` links were met, and the lookup was cut off.
        is_too_deep: what is in the directory would have more than `MAX_DEPTH` components, and the lookup was cut off.
        is_lexical: a ``..`` followed a name that does not exist, and took it back.
    """

    directory: DirectoryNode
    missing: list[bytes]
    obstacle: Origin | None = None
    is_loop: bool = False
    is_too_deep: bool = False
    is_lexical: bool = False

    @property
    def found(self) -> DirectoryNode | None:
        """The directory, if it exists."""
        return None if self.missing or self.is_loop or self.is_too_deep else self.directory


class Tree:
    """The root filesystem of an image.

    Attributes:
        indexes: of the layers, from the base to the top; origins point into them.
        root: the root directory.
        repeated: paths that stand in one layer more than once, of which the last counted; at most a few.
        repeated_count: how many there were.
    """

    max_repeated_kept = 8

    def __init__(self, indexes: Sequence[LayerIndex]) -> None:
        self.indexes = tuple(indexes)
        self.root = DirectoryNode()
        self.repeated: list[bytes] = []
        self.repeated_count = 0

    def type(self, origin: Origin) -> EntryType:
        """The type of the inode that an origin names."""
        return EntryType(self.indexes[layer_of(origin)].types[entry_of(origin)])

    def entry(self, node: Node) -> Entry:
        """The entry that gives a node its attributes; of a directory that no entry described, the defaults."""
        origin = node.origin if isinstance(node, DirectoryNode) else node
        if origin is None:
            return _UNDESCRIBED
        return self.indexes[layer_of(origin)][entry_of(origin)]

    def link(self, origin: Origin) -> bytes:
        """The target of a symbolic link."""
        return self.indexes[layer_of(origin)].link(entry_of(origin))

    def locate(self, path: bytes, *, follow: bool = True) -> PathLookup:
        """Finds a path as a process would whose root this tree is: no link leads out of it.

        Args:
            path: from the root, with or without a slash before it.
            follow: also a symbolic link that stands at the path itself.
        """
        trail: list[tuple[bytes, DirectoryNode]] = [(b"", self.root)]
        walk = PathWalk(path)
        missing: list[bytes] = []
        for name in walk:
            if name == b"..":
                if missing:
                    missing.pop()
                else:
                    del trail[max(1, len(trail) - 1) :]
                continue
            above = trail[-1][1]
            node = None if missing else above.children.get(name)
            if node is None:
                missing.append(name)
            elif isinstance(node, DirectoryNode):
                trail.append((name, node))
            elif self.type(node) is EntryType.SYMLINK and (follow or not walk.is_last):
                try:
                    is_absolute = walk.follow(self.link(node))
                except TooManySymlinks:
                    return PathLookup(path, None, path)
                if is_absolute:
                    del trail[1:]
            else:
                found = b"/".join([*(part for part, _ in trail[1:]), name])
                return PathLookup(found, node) if walk.is_last else PathLookup(found, None, found)
        names = [*(part for part, _ in trail[1:]), *missing]
        return PathLookup(b"/".join(names), None if missing else trail[-1][1])

    def find_directory(self, path: bytes) -> DirectoryLookup:
        """Look up a directory, symbolic links followed inside the root.

        A ``..`` at the root stays there, and behind a name that does not exist it takes that name back.
        """
        trail, walk = [self.root], PathWalk(path)
        missing: list[bytes] = []
        obstacle: Origin | None = None
        is_loop = is_lexical = False
        for name in walk:
            node = None if missing else trail[-1].children.get(name)
            if isinstance(node, DirectoryNode):
                trail.append(node)
            elif name == b"..":
                if missing:
                    missing.pop()
                    is_lexical = True
                else:
                    del trail[max(1, len(trail) - 1) :]
            elif node is None or self.type(node) is not EntryType.SYMLINK:
                obstacle = obstacle if missing else node
                missing.append(name)
            else:
                try:
                    is_absolute = walk.follow(self.link(node))
                except TooManySymlinks:
                    is_loop = True
                    break
                if is_absolute:
                    del trail[1:]
            if len(trail) + len(missing) > MAX_DEPTH:
                break
        is_too_deep = len(trail) + len(missing) > MAX_DEPTH
        return DirectoryLookup(trail[-1], missing, obstacle if missing else None, is_loop, is_too_deep, is_lexical)

    def walk(self) -> Iterator[tuple[bytes, Node]]:
        """All nodes with their paths, each directory before its children, children in the order of their bytes."""
        pending: list[tuple[bytes, Node]] = [(b"", self.root)]
        while pending:
            path, node = pending.pop()
            yield path, node
            if isinstance(node, DirectoryNode):
                prefix = path + b"/" if path else b""
                pending.extend((prefix + name, node.children[name]) for name in sorted(node.children, reverse=True))

    def wanted(self) -> list[bytearray]:
        """For each layer and each of its entries whether the tree needs it: 1, or 0."""
        found = [bytearray(len(index)) for index in self.indexes]
        for _, node in self.walk():
            origin = node.origin if isinstance(node, DirectoryNode) else node
            if origin is not None:
                found[origin >> 32][origin & 0xFFFFFFFF] = 1  # inline: calls made this loop slower
        return found
