"""Merging layers: what an image's root filesystem is.

Pure: indexes in, tree out. The result depends on nothing but the layers' entries; in which order layers arrived, were
scanned or written has no part in it.

The rules, beyond the specification's own words:

* Markers look at the tree below their layer and act before the layer's entries, wherever in the tar they stand.
* Entries act in the order of the tar; of a path that stands twice the last entry counts.
* A hard link takes the inode that its target has at that moment.
* Directories that no entry describes are 0755 0:0 at the epoch. One below a lower symbolic link is made where the link
  points to, inside the root; one below another lower non-directory replaces it; below a non-directory of its own layer
  it is refused.

Spec: image-spec layer.md, Applying Changesets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fastpull.errors import LayerError, LimitExceeded
from fastpull.layers.entry import EntryType
from fastpull.layers.tree import MAX_DEPTH, MAX_SYMLINKS, Directory, Node, Origin, Tree

if TYPE_CHECKING:
    from fastpull.layers.index import LayerIndex

_MARKER = b".wh."
_OPAQUE = b".wh..wh..opq"
_AUFS = b".wh..wh."
_AUFS_LINKS = b".wh..wh.plnk"
_NOTHING = (_MARKER, _MARKER + b".", _MARKER + b"..")


def merge(indexes: Sequence[LayerIndex]) -> Tree:
    """Applies layers, from the base to the top.

    Raises:
        LayerError: a changeset asks for what cannot be: a hard link to nothing or to a directory, a root that is not a
            directory, an entry below a file of its own layer, a malformed whiteout.
        LimitExceeded: links lead to a path that is too deep.
    """
    tree = Tree(indexes)
    for layer in range(len(indexes)):
        _Changeset(tree, layer).apply()
    return tree


def overlay(tree: Tree, index: LayerIndex) -> None:
    """Applies one more layer on top of a tree.

    Raises:
        LayerError, LimitExceeded: as from `merge`; the tree is of no use then.
    """
    tree.indexes = (*tree.indexes, index)
    _Changeset(tree, len(tree.indexes) - 1).apply()


class _Changeset:
    """One layer on its way into the tree."""

    def __init__(self, tree: Tree, layer: int) -> None:
        self._tree = tree
        self._layer = layer
        self._index = tree.indexes[layer]
        self._aufs_links: dict[bytes, Origin] = {}
        self._parent_path: bytes | None = None
        self._parent = tree.root

    def apply(self) -> None:
        markers = self._apply_markers() if _MARKER in self._index.columns.paths else frozenset()
        types, origin = self._index.types, self._layer << 32
        for number, path in enumerate(self._index.paths()):
            if number in markers:
                continue
            if not path:
                self._describe_root(types[number], origin | number)
                continue
            parent_path, _, name = path.rpartition(b"/")
            if parent_path != self._parent_path:
                self._parent = self._make_directory(parent_path)
                self._parent_path = parent_path
            if types[number] == EntryType.DIRECTORY:
                self._put_directory(name, origin | number, path)
            elif types[number] == EntryType.HARDLINK:
                self._put(name, self._link_target(number), path)
            else:
                self._put(name, origin | number, path)

    def _fail(self, reason: str, path: bytes) -> LayerError:
        return LayerError(str(self._index.blob), reason, path)

    # --- markers

    def _apply_markers(self) -> frozenset[int]:
        """Hides what the layer hides of the tree below it, and returns the numbers of entries that say so.

        All markers are resolved before the first one acts, so that their order does not matter.
        """
        numbers: list[int] = []
        hidden: list[tuple[Directory, bytes]] = []
        for number, parts in self._marked_paths():
            numbers.append(number)
            *parents, name = parts
            if any(part.startswith(_MARKER) for part in parents):
                self._take_below_marker(number, parts)
            elif name == _OPAQUE or not name.startswith(_AUFS):
                directory = self._find_directory(parents)
                if directory is not None:
                    hidden.append((directory, name))
                if name in _NOTHING:
                    raise self._fail("a whiteout of nothing", b"/".join(parts))
        for directory, name in hidden:
            if name == _OPAQUE:
                directory.children.clear()
            else:
                directory.children.pop(name.removeprefix(_MARKER), None)
        return frozenset(numbers)

    def _take_below_marker(self, number: int, parts: list[bytes]) -> None:
        """Passes over what AUFS kept at the root for itself, but for the files that hard links may point to."""
        if not parts[0].startswith(_AUFS):
            raise self._fail("an entry below a whiteout", b"/".join(parts))
        if parts[:-1] == [_AUFS_LINKS]:
            self._aufs_links[b"/".join(parts)] = self._layer << 32 | number

    def _marked_paths(self) -> Iterator[tuple[int, list[bytes]]]:
        for number, path in enumerate(self._index.paths()):
            if _MARKER in path:
                parts = path.split(b"/")
                if any(part.startswith(_MARKER) for part in parts):
                    yield number, parts

    # --- entries

    def _describe_root(self, type_: int, origin: Origin) -> None:
        if type_ != EntryType.DIRECTORY:
            raise self._fail("the root has to be a directory", b"/")
        self._tree.root.origin = origin

    def _put_directory(self, name: bytes, origin: Origin, path: bytes) -> None:
        existing = self._parent.children.get(name)
        if isinstance(existing, Directory):
            if self._is_own(existing):
                self._note_repeated(path)
            existing.origin = origin
        else:
            self._put(name, Directory(origin), path)

    def _put(self, name: bytes, node: Node, path: bytes) -> None:
        existing = self._parent.children.get(name)
        if existing is not None:
            # what is replaced may have been a directory or a link on the way to the parent at hand
            self._parent_path = None
            if self._is_own(existing):
                self._note_repeated(path)
        self._parent.children[name] = node

    def _is_own(self, node: Node) -> bool:
        origin = node.origin if isinstance(node, Directory) else node
        return origin is not None and origin >> 32 == self._layer

    def _note_repeated(self, path: bytes) -> None:
        self._tree.repeated_count += 1
        if len(self._tree.repeated) < Tree.max_repeated_kept:
            self._tree.repeated.append(path)

    def _link_target(self, number: int) -> Origin:
        target = self._index.link(number)
        *parents, name = target.split(b"/")
        directory = self._find_directory(parents)
        node = directory.children.get(name) if directory is not None and name else directory
        if node is None:
            node = self._aufs_links.get(target)
        if node is None:
            raise self._fail(
                f"a hard link to nothing ({target.decode(errors='backslashreplace')})",
                self._index.path(number),
            )
        if isinstance(node, Directory):
            raise self._fail("a hard link to a directory", self._index.path(number))
        return node

    # --- paths

    def _find_directory(self, parts: Sequence[bytes]) -> Directory | None:
        """The directory at a path, symbolic links followed inside the root; None if there is none."""
        trail, pending, links = [self._tree.root], list(reversed(parts)), 0
        while pending:
            name = pending.pop()
            if name == b"..":
                del trail[max(1, len(trail) - 1) :]
            elif name not in (b"", b"."):
                node = trail[-1].children.get(name)
                if isinstance(node, Directory):
                    trail.append(node)
                    continue
                links += 1
                if node is None or self._tree.type(node) is not EntryType.SYMLINK or links > MAX_SYMLINKS:
                    return None
                self._follow(node, trail, pending)
        return trail[-1]

    def _make_directory(self, path: bytes) -> Directory:
        """The directory that the layer's entries below a path go to, made where it is missing."""
        trail, links = [self._tree.root], 0
        pending = path.split(b"/")[::-1] if path else []
        while pending and len(trail) <= MAX_DEPTH:
            name = pending.pop()
            if name == b"..":
                del trail[max(1, len(trail) - 1) :]
            elif name not in (b"", b"."):
                above = trail[-1]
                node = above.children.get(name)
                if isinstance(node, Directory):
                    trail.append(node)
                elif node is None:
                    trail.append(self._imply(above, name))
                elif self._is_own(node):
                    raise self._fail("an entry below a non-directory of its own layer", path)
                elif self._tree.type(node) is EntryType.SYMLINK:
                    links += 1
                    if links > MAX_SYMLINKS:
                        raise self._fail("too many symbolic links on the way", path)
                    self._follow(node, trail, pending)
                else:
                    trail.append(self._imply(above, name))
        if len(trail) > MAX_DEPTH:
            reason = f"links lead to a path of more than {MAX_DEPTH} components"
            raise LimitExceeded(str(self._index.blob), reason, path)
        return trail[-1]

    def _follow(self, origin: Origin, trail: list[Directory], pending: list[bytes]) -> None:
        target = self._tree.link(origin)
        if target.startswith(b"/"):
            del trail[1:]
        pending.extend(reversed(target.split(b"/")))

    @staticmethod
    def _imply(above: Directory, name: bytes) -> Directory:
        directory = Directory()
        above.children[name] = directory
        return directory
