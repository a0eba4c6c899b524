"""The layer that adds what runtime profiles need, with paths resolved inside the image's tree. Pure."""

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


def compose(tree: Tree, requests: Sequence[tuple[RuntimeProfile, Additions]], mtime: int, subject: str) -> list[Member]:
    """Return the entries of the layer with all additions; each path once, sorted, parents first.

    Args:
        tree: tree of the image.
        requests: additions of each profile.
        mtime: modification time of all new entries, in seconds since the epoch.
        subject: the image, for messages.

    Raises:
        InvalidSetting: two profiles add different things at the same path.
        LayerError: the image has something else where a directory is needed, or a broken or circular link.
    """
    layer = _Layer(tree, mtime, subject)
    for profile, additions in requests:
        for path in additions.hidden:
            layer.hide(path)
        for addition in additions.inside:
            layer.add(addition, profile.name)
    return layer.members()


def sidecars_of(requests: Iterable[tuple[RuntimeProfile, Additions]]) -> dict[str, bytes]:
    """Return the sidecar files, by name or by ending."""
    return {name: content for _, additions in requests for name, content in additions.sidecars}


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

    def add(self, addition: AddedFile | AddedDirectory, profile: str) -> None:
        if isinstance(addition, AddedDirectory):
            self._add_directory(addition, profile)
        else:
            self._add_file(addition, profile)

    def members(self) -> list[Member]:
        return [self._found[path][0] for path in sorted(self._found)]

    def _add_directory(self, addition: AddedDirectory, profile: str) -> None:
        if addition.is_mount_point and self._tree.locate(addition.path, follow=False).node is not None:
            return
        place = self._tree.locate(addition.path)
        if place.blocked or not (place.node is None or isinstance(place.node, DirectoryNode)):
            self._refuse(
                f"{addition.purpose} cannot be created: something else exists there or on the way", addition.path
            )
        if place.node is None:
            self._make_parents(place.path, profile)
            self._put(Entry(place.path, EntryType.DIRECTORY, addition.mode, mtime=self._mtime), b"", profile)

    def _add_file(self, addition: AddedFile, profile: str) -> None:
        above, _, name = addition.path.rpartition(b"/")
        parent = self._tree.locate(above)
        if parent.blocked or not (parent.node is None or isinstance(parent.node, DirectoryNode)):
            self._refuse(f"a file for {profile} cannot be created: its parent is not a directory", addition.path)
        there = parent.node.children.get(name) if isinstance(parent.node, DirectoryNode) else None
        if there is not None and not addition.replace:
            return
        path = parent.path + b"/" + name if parent.path else name
        self._make_parents(path, profile)
        self._put(
            Entry(path, EntryType.FILE, 0o644, mtime=self._mtime, size=len(addition.content)), addition.content, profile
        )

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
            self._refuse("the name is reserved for whiteouts", entry.path)
        before = self._found.setdefault(entry.path, ((entry, content), profile))
        if before[0] != (entry, content) and not entry.type == before[0][0].type == EntryType.DIRECTORY:
            raise InvalidSetting(
                f"{before[1]}, {profile}",
                f"these need different things at /{entry.path.decode(errors='backslashreplace')}, make two outputs",
            )

    def _refuse(self, reason: str, path: bytes) -> NoReturn:
        raise LayerError(self._subject, reason, path)
