"""The merge once more, slowly: a dictionary of whole paths, and a full copy of it wherever one helps to think.

Written from image-spec layer.md and the rules in docs/layers.md, without a look at the real one.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastpull.layers.entry import Entry, EntryType

Path = tuple[bytes, ...]
Model = dict[Path, tuple[str, int | None]]
"""For each path whether it is a ``dir`` or a ``leaf``, and the origin of what gives it its attributes."""


class Refused(Exception):
    pass


def merge_model(layers: Sequence[Sequence[Entry]]) -> Model:
    tree: Model = {(): ("dir", None)}
    for number, layer in enumerate(layers):
        _apply(tree, number, layer, layers)
    return tree


def _apply(tree: Model, number: int, layer: Sequence[Entry], layers: Sequence[Sequence[Entry]]) -> None:
    below = dict(tree)
    aufs: dict[Path, int] = {}
    for position, entry in enumerate(layer):
        path = _parts(entry.path)
        if not _is_marked(path):
            continue
        *parents, name = path
        if any(part.startswith(b".wh.") for part in parents):
            if not parents[0].startswith(b".wh..wh."):
                raise Refused("below a whiteout")
            if parents == [b".wh..wh.plnk"]:
                aufs[path] = number << 32 | position
            continue
        if name in (b".wh.", b".wh..", b".wh..."):
            raise Refused("whiteout of nothing")
        where = _directory(below, tuple(parents), layers)
        if where is None:
            continue
        if name == b".wh..wh..opq":
            _remove(tree, lambda path, where=where: path[: len(where)] == where and len(path) > len(where))
        elif not name.startswith(b".wh..wh."):
            target = (*where, name[4:])
            _remove(tree, lambda path, target=target: path[: len(target)] == target)
    for position, entry in enumerate(layer):
        path = _parts(entry.path)
        if not _is_marked(path):
            _add(tree, number, number << 32 | position, entry, path, aufs, layers)


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
            raise Refused("root")
        tree[()] = ("dir", origin)
        return
    where = (*_make(tree, number, path[:-1], layers, [0]), path[-1])
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
            raise Refused("hard link")
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
    entry = layers[origin >> 32][origin & 0xFFFFFFFF]
    return entry.linkname if entry.type is EntryType.SYMLINK else None


def _steps(target: bytes) -> Path:
    return tuple(part for part in target.split(b"/") if part not in (b"", b"."))


def _directory(tree: Model, path: Path, layers: Sequence[Sequence[Entry]], hops: int = 0) -> Path | None:
    """Where a path leads, links followed; None unless to a directory."""
    at: Path = ()
    for number, part in enumerate(path):
        if part == b"..":
            at = at[:-1]
            continue
        kind, origin = tree.get((*at, part), ("", None))
        if kind == "":
            return None
        if kind == "dir":
            at = (*at, part)
            continue
        target = _symlink(origin, layers) if origin is not None else None
        if target is None or hops == 40:
            return None
        start = () if target.startswith(b"/") else at
        return _directory(tree, (*start, *_steps(target), *path[number + 1 :]), layers, hops + 1)
    return at


def _make(tree: Model, number: int, path: Path, layers: Sequence[Sequence[Entry]], hops: list[int]) -> Path:
    """As `_directory`, but makes what is missing."""
    at: Path = ()
    for position, part in enumerate(path):
        if part == b"..":
            at = at[:-1]
            continue
        here = (*at, part)
        kind, origin = tree.get(here, ("", None))
        if kind == "leaf":
            assert origin is not None
            if origin >> 32 == number:
                raise Refused("below a non-directory of its own layer")
            target = _symlink(origin, layers)
            if target is not None:
                hops[0] += 1
                if hops[0] > 40:
                    raise Refused("loop")
                start = () if target.startswith(b"/") else at
                return _make(tree, number, (*start, *_steps(target), *path[position + 1 :]), layers, hops)
        if kind != "dir":
            tree[here] = ("dir", None)
        at = here
    return at
