"""The merge of layers into the root filesystem of an image.

Pure: indexes in, tree out. The result depends only on the entries of the layers, and not on the order in which layers
arrive, are scanned or are written.

The rules, in addition to the specification:

* Whiteouts apply before the entries of their layer, at any position in the tar: `fastpull.layers.whiteouts`.
* Entries apply in the order of the tar; if a path occurs twice, the last entry applies.
* An entry below a symbolic link goes to the target of the link, inside the root, whichever layer has the link.
* A hard link refers to the inode that its target has at that moment.
* Directories that no entry describes are 0755 0:0 at the epoch. Such a directory replaces a file or device of a lower
  layer; a file or device of the same layer in its place is an error.

Spec: image-spec layer.md, Applying Changesets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastpull.errors import LayerError, LimitExceeded
from fastpull.layers.entry import EntryType
from fastpull.layers.tree import MAX_DEPTH, DirectoryNode, Node, Origin, Tree, origin_of
from fastpull.layers.whiteouts import Whiteouts, find_hidden, hide, read_markers

if TYPE_CHECKING:
    from fastpull.layers.index import LayerIndex


def merge(indexes: Sequence[LayerIndex]) -> Tree:
    """Merge layers, from the base to the top.

    Raises:
        LayerError: a hard link without a target or to a directory, a root that is not a directory, an entry below a
            file of its own layer, or a malformed whiteout.
        LimitExceeded: symbolic links lead to a path that is too deep.
    """
    tree = Tree(indexes)
    for layer in range(len(indexes)):
        _Changeset(tree, layer).apply()
    return tree


def overlay(tree: Tree, index: LayerIndex) -> None:
    """Merge one more layer into a tree.

    Raises:
        LayerError, LimitExceeded: as from `merge`; the tree is invalid then.
    """
    tree.indexes = (*tree.indexes, index)
    _Changeset(tree, len(tree.indexes) - 1).apply()


class _Changeset:
    """The changes of one layer.

    Args:
        tree: tree of the layers below.
        layer: number of the layer.
        markers: whiteouts of the layer; read from its index if None.
    """

    def __init__(self, tree: Tree, layer: int, markers: Whiteouts | None = None) -> None:
        self._tree = tree
        self._layer = layer
        self._index = tree.indexes[layer]
        self._markers = read_markers(self._index) if markers is None else markers
        self._parent_path: bytes | None = None
        self._parent = tree.root

    def apply(self) -> None:
        """Apply the whiteouts of the layer, then add its entries."""
        for directory, name in find_hidden(self._tree, self._index, self._markers, self._preview):
            hide(directory, name)
        self.add_entries()

    def _preview(self, copy: Tree) -> None:
        _Changeset(copy, self._layer, self._markers).add_entries(skip_refused=True)

    def add_entries(self, *, skip_refused: bool = False) -> None:
        """Add the layer's entries, in the order of the tar.

        Args:
            skip_refused: whether to skip entries that cause an error.
        """
        types, origin, markers = self._index.types, origin_of(self._layer, 0), self._markers.numbers
        for number, path in enumerate(self._index.paths()):
            if number in markers:
                continue
            try:
                if not path:
                    self._describe_root(types[number], origin | number)
                    continue
                parent_path, _, name = path.rpartition(b"/")
                if parent_path != self._parent_path:
                    self._enter(parent_path)
                if types[number] == EntryType.DIRECTORY:
                    self._put_directory(name, origin | number, path)
                elif types[number] == EntryType.HARDLINK:
                    self._put(name, self._link_target(number), path)
                else:
                    self._put(name, origin | number, path)
            except (LayerError, LimitExceeded):
                if not skip_refused:
                    raise

    def _fail(self, reason: str, path: bytes) -> LayerError:
        return LayerError(str(self._index.blob), reason, path)

    # --- entries

    def _describe_root(self, type_: int, origin: Origin) -> None:
        if type_ != EntryType.DIRECTORY:
            raise self._fail("the root has to be a directory", b"/")
        self._tree.root.origin = origin

    def _put_directory(self, name: bytes, origin: Origin, path: bytes) -> None:
        existing = self._parent.children.get(name)
        if isinstance(existing, DirectoryNode):
            if self._is_own(existing):
                self._note_repeated(path)
            existing.origin = origin
        else:
            self._put(name, DirectoryNode(origin), path)

    def _put(self, name: bytes, node: Node, path: bytes) -> None:
        existing = self._parent.children.get(name)
        if existing is not None:
            # the replaced node may be a directory or link on the path of the cached parent
            self._parent_path = None
            if self._is_own(existing):
                self._note_repeated(path)
        self._parent.children[name] = node

    def _is_own(self, node: Node) -> bool:
        origin = node.origin if isinstance(node, DirectoryNode) else node
        return origin is not None and origin >> 32 == self._layer  # inline, because a call made merge slower

    def _note_repeated(self, path: bytes) -> None:
        self._tree.repeated_count += 1
        if len(self._tree.repeated) < Tree.max_repeated_kept:
            self._tree.repeated.append(path)

    def _link_target(self, number: int) -> Origin:
        target = self._index.link(number)
        parent_path, _, name = target.rpartition(b"/")
        directory = self._tree.find_directory(parent_path).found
        node = directory.children.get(name) if directory is not None and name else directory
        if node is None and target in self._markers.aufs_links:
            node = origin_of(self._layer, self._markers.aufs_links[target])
        if node is None:
            raise self._fail(
                f"a hard link to nothing ({target.decode(errors='backslashreplace')})",
                self._index.path(number),
            )
        if isinstance(node, DirectoryNode):
            raise self._fail("a hard link to a directory", self._index.path(number))
        return node

    # --- paths

    def _enter(self, path: bytes) -> None:
        """Make the directory at a path the parent of the entries to come, and make it where it is missing."""
        found = self._tree.find_directory(path)
        if found.is_loop:
            raise self._fail("too many symbolic links on the way", path)
        if found.is_too_deep:
            reason = f"links lead to a path of more than {MAX_DEPTH} components"
            raise LimitExceeded(str(self._index.blob), reason, path)
        if found.obstacle is not None and self._is_own(found.obstacle):
            raise self._fail("an entry below a non-directory of its own layer", path)
        directory = found.directory
        for name in found.missing:
            above, directory = directory, DirectoryNode()
            above.children[name] = directory
        # a link made later at a name that was taken back would lead elsewhere
        self._parent_path = None if found.is_lexical else path
        self._parent = directory
