"""The merged tree: the entry at each path, and the layer that it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from fastpull.layers.entry import Entry, EntryType
from fastpull.layers.path_walk import PathWalk, TooManySymlinks

if TYPE_CHECKING:
    from fastpull.layers.index import LayerIndex

Origin: TypeAlias = int
"""A layer and an entry as one number, ``layer << 32 | entry``. Names with the same origin are hard links."""


def origin_of(layer: int, entry: int) -> Origin:
    """Return the origin of an entry of a layer."""
    return layer << 32 | entry


def layer_of(origin: Origin) -> int:
    """Return the number of the layer of an origin."""
    return origin >> 32


def entry_of(origin: Origin) -> int:
    """Return the number of the entry, within its layer, of an origin."""
    return origin & 0xFFFFFFFF


class DirectoryNode:
    """A directory of the tree.

    Attributes:
        origin: origin of the last entry that describes the directory; None if no entry does (then 0755 0:0, epoch).
        children: directories, and origins of other entries, by name.
    """

    __slots__ = ("children", "origin")

    def __init__(self, origin: Origin | None = None) -> None:
        self.origin = origin
        self.children: dict[bytes, DirectoryNode | Origin] = {}


Node: TypeAlias = DirectoryNode | Origin

_UNDESCRIBED = Entry(b"", EntryType.DIRECTORY, mode=0o755)
MAX_DEPTH = 255
"""Maximum components of a path, as in the scanner; symbolic links must not lead beyond it."""


@dataclass(frozen=True, slots=True)
class PathLookup:
    """The result of resolving a path inside a tree.

    Attributes:
        path: resolved path, without symbolic links, ``.`` and ``..``.
        node: the node at the path; None if there is none.
        blocked: path of a component that is no directory or is one symbolic link too many; empty if there is none.
    """

    path: bytes
    node: Node | None
    blocked: bytes = b""


@dataclass(slots=True)
class DirectoryLookup:
    """The result of looking up a directory.

    Attributes:
        directory: deepest existing directory of the path.
        missing: names below it that do not exist; empty if the directory itself exists.
        obstacle: origin of the entry at the first missing name that is neither directory nor symbolic link.
        is_loop: whether the lookup stopped because it met more than `MAX_SYMLINKS` links.
        is_too_deep: whether the lookup stopped because entries in the directory would exceed `MAX_DEPTH` components.
        is_lexical: whether a ``..`` followed, and removed, a name that does not exist.
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
        indexes: indexes of the layers, from the base to the top; origins refer to them.
        root: root directory.
        repeated: up to `max_repeated_kept` paths that one layer contains more than once; the last entry applies.
        repeated_count: number of such paths.
    """

    max_repeated_kept = 8

    def __init__(self, indexes: Sequence[LayerIndex]) -> None:
        self.indexes = tuple(indexes)
        self.root = DirectoryNode()
        self.repeated: list[bytes] = []
        self.repeated_count = 0

    def type(self, origin: Origin) -> EntryType:
        """Return the type of the entry of an origin."""
        return EntryType(self.indexes[layer_of(origin)].types[entry_of(origin)])

    def entry(self, node: Node) -> Entry:
        """Return the entry with the attributes of a node; the defaults for a directory that no entry describes."""
        origin = node.origin if isinstance(node, DirectoryNode) else node
        if origin is None:
            return _UNDESCRIBED
        return self.indexes[layer_of(origin)][entry_of(origin)]

    def link(self, origin: Origin) -> bytes:
        """Return the target of a symbolic link."""
        return self.indexes[layer_of(origin)].link(entry_of(origin))

    def locate(self, path: bytes, *, follow: bool = True) -> PathLookup:
        """Resolve a path as a process with this root would: no link leads outside.

        Args:
            path: path from the root, with or without a leading slash.
            follow: whether to follow a symbolic link at the path itself.
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

    def _descend(self, path: bytes) -> DirectoryNode | None:
        """Return the directory at a path if the path needs no resolution, which is the common case."""
        parts, directory = path.split(b"/"), self.root
        if len(parts) >= MAX_DEPTH:
            return None
        for name in parts:
            child = directory.children.get(name)
            if not isinstance(child, DirectoryNode):
                return None
            directory = child
        return directory

    def find_directory(self, path: bytes) -> DirectoryLookup:
        """Look up a directory; follow symbolic links inside the root.

        A ``..`` at the root stays at the root. After a name that does not exist, it removes that name.
        """
        if (existing := self._descend(path)) is not None:
            return DirectoryLookup(existing, [])
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
        """Yield all nodes with their paths: a directory before its children, children sorted by bytes."""
        pending: list[tuple[bytes, Node]] = [(b"", self.root)]
        while pending:
            path, node = pending.pop()
            yield path, node
            if isinstance(node, DirectoryNode):
                prefix = path + b"/" if path else b""
                pending.extend((prefix + name, node.children[name]) for name in sorted(node.children, reverse=True))

    def wanted(self) -> list[bytearray]:
        """Return for each entry of each layer whether the tree needs it: 1 or 0."""
        found = [bytearray(len(index)) for index in self.indexes]
        for _, node in self.walk():
            origin = node.origin if isinstance(node, DirectoryNode) else node
            if origin is not None:
                found[origin >> 32][origin & 0xFFFFFFFF] = 1  # inline, because calls made this loop slower
        return found
