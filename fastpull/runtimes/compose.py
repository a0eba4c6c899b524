"""From what profiles want to one more layer on top of an image: pure, and resolved inside the image's tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from fastpull.errors import InvalidSetting, LayerError, LimitExceeded
from fastpull.layers.entry import Entry, EntryType
from fastpull.layers.tree import MAX_DEPTH, DirectoryNode
from fastpull.runtimes.base import AddedDirectory, AddedFile, Additions

if TYPE_CHECKING:
    from fastpull.layers.tree import Tree
    from fastpull.runtimes.base import RuntimeProfile

Member: TypeAlias = tuple[Entry, bytes]

_MARKER = b".wh."
_OPAQUE = b".wh..wh..opq"
_MAX_SHOWN = 80


def compose(tree: Tree, wishes: Sequence[tuple[RuntimeProfile, Additions]], mtime: int, subject: str) -> list[Member]:
    """The entries of a layer that gives an image what profiles want; each path once, sorted, parents first.

    Args:
        tree: of the image.
        wishes: what each profile wants.
        mtime: for all that is new, in seconds since the epoch.
        subject: the image, for messages.

    Raises:
        InvalidSetting: two profiles want different things at one place.
        LayerError: the image has something else where a directory has to be, or links that lead nowhere.
    """
    layer = _Layer(tree, mtime, subject)
    for profile, additions in wishes:
        for path in additions.hidden:
            layer.hide(path)
        for wish in additions.inside:
            layer.add(wish, profile.name)
    return layer.members()


def sidecars_of(wishes: Iterable[tuple[RuntimeProfile, Additions]]) -> dict[str, bytes]:
    """The files beside the root filesystem, by name or by ending."""
    return {name: content for _, additions in wishes for name, content in additions.sidecars}


class _Layer:
    def __init__(self, tree: Tree, mtime: int, subject: str) -> None:
        self._tree = tree
        self._mtime = mtime
        self._subject = subject
        self._found: dict[bytes, tuple[Member, str]] = {}

    def hide(self, path: bytes) -> None:
        node = self._tree.locate(path, follow=False).node
        if isinstance(node, DirectoryNode) and node.children:
            self._found[path + b"/" + _OPAQUE] = (Entry(path + b"/" + _OPAQUE, EntryType.FILE), b""), ""

    def add(self, wish: AddedFile | AddedDirectory, profile: str) -> None:
        if isinstance(wish, AddedDirectory):
            self._add_folder(wish, profile)
        else:
            self._add_file(wish, profile)

    def members(self) -> list[Member]:
        return [self._found[path][0] for path in sorted(self._found)]

    def _add_folder(self, wish: AddedDirectory, profile: str) -> None:
        if wish.is_mount_point and self._tree.locate(wish.path, follow=False).node is not None:
            return
        place = self._tree.locate(wish.path)
        if place.blocked or not (place.node is None or isinstance(place.node, DirectoryNode)):
            self._refuse(f"{wish.purpose} cannot be made, since something else is there or on the way", wish.path)
        if place.node is None:
            self._make_parents(place.path, profile)
            self._put(Entry(place.path, EntryType.DIRECTORY, wish.mode, mtime=self._mtime), b"", profile)

    def _add_file(self, wish: AddedFile, profile: str) -> None:
        above, _, name = wish.path.rpartition(b"/")
        folder = self._tree.locate(above)
        if folder.blocked or not (folder.node is None or isinstance(folder.node, DirectoryNode)):
            self._refuse(f"a file for {profile} has no place, since no directory is above it", wish.path)
        there = folder.node.children.get(name) if isinstance(folder.node, DirectoryNode) else None
        if there is not None and not wish.replace:
            return
        path = folder.path + b"/" + name if folder.path else name
        self._make_parents(path, profile)
        self._put(Entry(path, EntryType.FILE, 0o644, mtime=self._mtime, size=len(wish.content)), wish.content, profile)

    def _make_parents(self, path: bytes, profile: str) -> None:
        parts = path.split(b"/")[:-1]
        if len(parts) >= MAX_DEPTH:
            raise LimitExceeded(self._subject, f"a path of more than {MAX_DEPTH} components", path[:_MAX_SHOWN])
        for depth in range(1, len(parts) + 1):
            parent = b"/".join(parts[:depth])
            if self._tree.locate(parent, follow=False).node is None:
                self._put(Entry(parent, EntryType.DIRECTORY, 0o755, mtime=self._mtime), b"", profile)

    def _put(self, entry: Entry, content: bytes, profile: str) -> None:
        if any(part.startswith(_MARKER) for part in entry.path.split(b"/")):
            self._refuse("a name that layers keep for themselves", entry.path)
        before = self._found.setdefault(entry.path, ((entry, content), profile))
        if before[0] != (entry, content) and not entry.type == before[0][0].type == EntryType.DIRECTORY:
            raise InvalidSetting(
                f"{before[1]}, {profile}",
                f"these want different things at /{entry.path.decode(errors='backslashreplace')}, make two outputs",
            )

    def _refuse(self, reason: str, path: bytes) -> NoReturn:
        raise LayerError(self._subject, reason, path)
