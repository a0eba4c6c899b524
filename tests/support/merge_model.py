"""A slow, obvious model of the merge: a dictionary of full paths, copied wherever that is simpler.

It was written from image-spec layer.md and the rules in docs/layers.md, independently of the real merge.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from fastpull.layers.entry import Entry, EntryType
from fastpull.layers.tree import entry_of, layer_of, origin_of

Path = tuple[bytes, ...]
Model = dict[Path, tuple[str, int | None]]
"""For each path its kind, ``dir`` or ``leaf``, and the origin of its attributes."""


class ModelRefused(Exception):
    pass


def merge_model(layers: Sequence[Sequence[Entry]], *, takes_lower_files_for_directories: bool = True) -> Model:
    """Return the tree of layers.

    Args:
        layers: layers from the base to the top.
        takes_lower_files_for_directories: replace lower files by directories where entries are below them; otherwise
            refuse the layers, as umoci does.
    """
    tree: Model = {(): ("dir", None)} if takes_lower_files_for_directories else _StrictModel({(): ("dir", None)})
    for number, layer in enumerate(layers):
        _apply(tree, number, layer, layers)
    return tree


class _StrictModel(dict[Path, tuple[str, int | None]]):
    """Return the tree, or refuse entries below files of any layer."""


class _Preview(dict[Path, tuple[str, int | None]]):
    """A copy of a model with the set of its removed paths."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.removed: set[Path] = set()

    def __delitem__(self, path: Path) -> None:
        super().__delitem__(path)
        self.removed.add(path)


def _apply(tree: Model, number: int, layer: Sequence[Entry], layers: Sequence[Sequence[Entry]]) -> None:
    markers: list[tuple[Path, bytes]] = []
    aufs: dict[Path, int] = {}
    for position, entry in enumerate(layer):
        path = _parts(entry.path)
        if not _is_marked(path):
            continue
        *parents, name = path
        if any(part.startswith(b".wh.") for part in parents):
            if not parents[0].startswith(b".wh..wh."):
                raise ModelRefused("below a whiteout")
            if parents == [b".wh..wh.plnk"]:
                aufs[path] = origin_of(number, position)
            continue
        if name in (b".wh.", b".wh..", b".wh..."):
            raise ModelRefused("whiteout of nothing")
        if name == b".wh..wh..opq" or not name.startswith(b".wh..wh."):
            markers.append((tuple(parents), name))
    for where, name in _hidden(tree, number, layer, layers, markers, aufs):
        _hide(tree, where, name)
    for position, entry in enumerate(layer):
        path = _parts(entry.path)
        if not _is_marked(path):
            _add(tree, number, origin_of(number, position), entry, path, aufs, layers)


def _hidden(
    tree: Model,
    number: int,
    layer: Sequence[Entry],
    layers: Sequence[Sequence[Entry]],
    markers: list[tuple[Path, bytes]],
    aufs: dict[Path, int],
) -> list[tuple[Path, bytes]]:
    """Return the targets of markers in the tree after their layer, limited to entries of lower layers."""
    preview = _Preview(tree)
    for parents, name in markers:
        if preview.get(parents, ("", None))[0] == "dir":
            _hide(preview, parents, name)
    for position, entry in enumerate(layer):
        path = _parts(entry.path)
        if not _is_marked(path):
            with suppress(ModelRefused):
                _add(preview, number, origin_of(number, position), entry, path, aufs, layers)
    found = []
    for parents, name in markers:
        where = _directory(preview, parents, layers)
        if where is not None and tree.get(where, ("", None))[0] == "dir" and where not in preview.removed:
            found.append((where, name))
    return found


def _hide(tree: Model, where: Path, name: bytes) -> None:
    if name == b".wh..wh..opq":
        _remove(tree, lambda path: path[: len(where)] == where and len(path) > len(where))
    else:
        target = (*where, name[4:])
        _remove(tree, lambda path: path[: len(target)] == target)


def _add(
    tree: Model,
    number: int,
    origin: int,
    entry: Entry,
    path: Path,
    aufs: dict[Path, int],
    layers: Sequence[Sequence[Entry]],
) -> None:
    if not path:
        if entry.type is not EntryType.DIRECTORY:
            raise ModelRefused("root")
        tree[()] = ("dir", origin)
        return
    where = (*_make(tree, number, path[:-1], layers), path[-1])
    if entry.type is EntryType.DIRECTORY:
        if tree.get(where, ("", None))[0] != "dir":
            _remove(tree, lambda path: path[: len(where)] == where)
        tree[where] = ("dir", origin)
        return
    kept: int | None = origin
    if entry.type is EntryType.HARDLINK:
        target = _parts(entry.linkname)
        folder = _directory(tree, target[:-1], layers)
        found = tree.get((*folder, *target[-1:])) if folder is not None else None
        if found is None and target in aufs:
            found = ("leaf", aufs[target])
        if found is None or found[0] == "dir":
            raise ModelRefused("hard link")
        kept = found[1]
    _remove(tree, lambda path: path[: len(where)] == where)
    tree[where] = ("leaf", kept)


def _parts(path: bytes) -> Path:
    return tuple(path.split(b"/")) if path else ()


def _is_marked(path: Path) -> bool:
    return any(part.startswith(b".wh.") for part in path)


def _remove(tree: Model, which) -> None:  # type: ignore[no-untyped-def]
    for path in [path for path in tree if which(path)]:
        del tree[path]


def _symlink(origin: int, layers: Sequence[Sequence[Entry]]) -> bytes | None:
    entry = layers[layer_of(origin)][entry_of(origin)]
    return entry.linkname if entry.type is EntryType.SYMLINK else None


def _steps(target: bytes) -> Path:
    return tuple(part for part in target.split(b"/") if part not in (b"", b"."))


def _resolve(tree: Model, path: Path, layers: Sequence[Sequence[Entry]]) -> Path:
    """Return the path without symbolic links and ``..``, whether it exists or not."""
    at: Path = ()
    pending, links = path, 0
    while pending:
        part, *rest = pending
        pending = tuple(rest)
        if part == b"..":
            at = at[:-1]
            continue
        kind, origin = tree.get((*at, part), ("", None))
        target = _symlink(origin, layers) if kind == "leaf" and origin is not None else None
        if target is None:
            at = (*at, part)
            continue
        links += 1
        if links > 40:
            raise ModelRefused("loop")
        at = () if target.startswith(b"/") else at
        pending = (*_steps(target), *pending)
    return at


def _directory(tree: Model, path: Path, layers: Sequence[Sequence[Entry]]) -> Path | None:
    """Return the directory at a path, with links followed, or None."""
    try:
        where = _resolve(tree, path, layers)
    except ModelRefused:
        return None
    return where if tree.get(where, ("", None))[0] == "dir" else None


def _make(tree: Model, number: int, path: Path, layers: Sequence[Sequence[Entry]]) -> Path:
    """Return the directory at a path, like `_directory`, and create missing ones."""
    where = _resolve(tree, path, layers)
    ways = [where[:length] for length in range(1, len(where) + 1)]
    for way in ways:
        kind, origin = tree.get(way, ("", None))
        if kind == "leaf" and origin is not None and (layer_of(origin) == number or isinstance(tree, _StrictModel)):
            raise ModelRefused("below a non-directory of its own layer")
    for way in ways:
        if tree.get(way, ("", None))[0] != "dir":
            if way in tree:
                del tree[way]
            tree[way] = ("dir", None)
    return where
