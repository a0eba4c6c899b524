"""Whiteouts: entries that hide paths of lower layers.

The path of a whiteout is resolved in the tree after its layer, whatever its position in the tar. A symbolic link on the
path is followed if the layer keeps or creates it. If the layer replaces or hides the link, the whiteout applies to the
replacement, and the target of the link is not affected. A whiteout never hides entries of its own layer.

Spec: image-spec layer.md, Whiteouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastpull.errors import LayerError
from fastpull.layers.entry import EntryType
from fastpull.layers.tree import DirectoryNode, Node, Tree

if TYPE_CHECKING:
    from fastpull.layers.index import LayerIndex

_MARKER = b".wh."
_OPAQUE = b".wh..wh..opq"
_AUFS = b".wh..wh."
_AUFS_LINKS = b".wh..wh.plnk"
_NOTHING = (_MARKER, _MARKER + b".", _MARKER + b"..")


@dataclass(slots=True)
class Whiteouts:
    """The whiteouts of a layer, and the internal entries of AUFS.

    Attributes:
        places: parent path and name of each whiteout.
        numbers: numbers of all entries that are not added to the tree.
        aufs_links: numbers of entries that hard links may refer to, by path.
    """

    places: list[tuple[bytes, bytes]] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)
    aufs_links: dict[bytes, int] = field(default_factory=dict)


def read_markers(index: LayerIndex) -> Whiteouts:
    """Return the whiteouts of a layer.

    Raises:
        LayerError: a whiteout without a name, or an entry below a whiteout.
    """
    found = Whiteouts()
    if _MARKER not in index.columns.paths:
        return found
    for number, path in enumerate(index.paths()):
        if not path.startswith(_MARKER) and b"/" + _MARKER not in path:
            continue
        found.numbers.add(number)
        parent, _, name = path.rpartition(b"/")
        if parent.startswith(_MARKER) or b"/" + _MARKER in parent:
            if not path.startswith(_AUFS):
                raise LayerError(str(index.blob), "an entry below a whiteout", path)
            if parent == _AUFS_LINKS:
                found.aufs_links[path] = number
        elif name in _NOTHING:
            raise LayerError(str(index.blob), "a whiteout of nothing", path)
        elif name == _OPAQUE or not name.startswith(_AUFS):
            found.places.append((parent, name))
    return found


def hide(directory: DirectoryNode, name: bytes) -> None:
    """Apply a whiteout to the lower directory that it is in."""
    if name == _OPAQUE:
        directory.children.clear()
    else:
        directory.children.pop(name.removeprefix(_MARKER), None)


def find_hidden(
    tree: Tree, index: LayerIndex, markers: Whiteouts, preview: Callable[[Tree], None]
) -> Sequence[tuple[DirectoryNode, bytes]]:
    """Return the directories that the whiteouts of a layer apply to, each with the name of the whiteout.

    Args:
        tree: tree of the layers below; not changed.
        index: index of the layer.
        markers: whiteouts of the layer.
        preview: adds the entries of the layer to a copy of the tree; called only if symbolic links are involved.
    """
    plain, meets_links = [], False
    for parent, name in markers.places:
        directory, meets_link = _find_plain(tree, parent)
        meets_links |= meets_link
        if directory is not None:
            plain.append((directory, name))
    if not meets_links and not _makes_links(index, markers):
        return plain
    copy = Tree(tree.indexes)
    copy.root = _Copy(tree.root)
    for parent, name in markers.places:
        directory, _ = _find_plain(copy, parent)
        if directory is not None:
            hide(directory, name)
    preview(copy)
    found = []
    for parent, name in markers.places:
        directory = copy.find_directory(parent).found
        if isinstance(directory, _Copy):
            found.append((directory.original, name))
    return found


def _find_plain(tree: Tree, path: bytes) -> tuple[DirectoryNode | None, bool]:
    """Return the directory at a path without following links, and whether the path contains a symbolic link."""
    directory = tree.root
    for part in path.split(b"/") if path else ():
        node = directory.children.get(part)
        if not isinstance(node, DirectoryNode):
            return None, node is not None and tree.type(node) is EntryType.SYMLINK
        directory = node
    return directory, False


def _makes_links(index: LayerIndex, markers: Whiteouts) -> bool:
    """Return whether the layer may create a symbolic link on the path of one of its whiteouts."""
    names = {part for parent, _ in markers.places if parent for part in parent.split(b"/")}
    kinds = (EntryType.SYMLINK, EntryType.HARDLINK)
    return bool(names) and any(
        type_ in kinds and index.path(number).rpartition(b"/")[2] in names for number, type_ in enumerate(index.types)
    )


class _Copy(DirectoryNode):
    """A copy of a directory; children are copied when they are first looked up.

    Attributes:
        original: original directory.
    """

    __slots__ = ("original",)

    def __init__(self, original: DirectoryNode) -> None:
        super().__init__(original.origin)
        self.original = original
        self.children = _CopiedChildren(original.children)


class _CopiedChildren(dict[bytes, Node]):
    """Children of a copy; those of the original until they are set or removed."""

    def __init__(self, original: dict[bytes, Node]) -> None:
        super().__init__()
        self._original = original
        self._removed: set[bytes] = set()

    def get(self, name: bytes, _default: object = None) -> Node | None:  # type: ignore[override]
        node = super().get(name)
        if node is None and name not in self._removed:
            node = self._original.get(name)
            if isinstance(node, DirectoryNode):
                node = self[name] = _Copy(node)
        return node

    def pop(self, name: bytes, _default: object = None) -> None:  # type: ignore[override]
        super().pop(name, None)
        self._removed.add(name)

    def clear(self) -> None:
        super().clear()
        self._original = {}
