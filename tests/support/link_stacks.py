"""Random stacks of layers with many entries below symbolic links."""

from __future__ import annotations

import random

from tests.support.layers import Member, file, folder, opaque, symlink, whiteout

LAYERS = 3
_DEPTH = 3


def random_stack(source: random.Random, names: list[str], *, markers: float = 0.0) -> list[list[Member]]:
    """Return layers of links, directories and files, many of them below links of the same or a lower layer.

    Args:
        source: random source.
        names: components of the paths.
        markers: share of whiteouts and opaque markers among the entries.
    """
    stack: list[list[Member]] = []
    for _ in range(LAYERS):
        layer: list[Member] = []
        lower = [entry.path.decode() for below in stack for entry, _ in below if entry.linkname]
        for number in range(source.randint(2, 6)):
            links = [entry.path.decode() for entry, _ in layer if entry.linkname]
            links += lower if markers else []
            path = _path(source, names)
            if links and source.random() < 0.6:
                path = f"{source.choice(links)}/{_path(source, names)}"
            layer.append(_member(source, path, names, number, markers))
        stack.append(layer)
    return stack


def _member(source: random.Random, path: str, names: list[str], number: int, markers: float) -> Member:
    if source.random() < markers:
        return source.choice([whiteout(path), opaque(path)])
    kind = source.random()
    if kind < 0.4:
        return symlink(path, _target(source, names), mtime=number)
    if kind < 0.6:
        return folder(path, 0o700 + number)
    return file(path, f"{source.random()}".encode(), mtime=number)


def _path(source: random.Random, names: list[str]) -> str:
    return "/".join(source.choice(names) for _ in range(source.randint(1, _DEPTH)))


def _target(source: random.Random, names: list[str]) -> str:
    path = _path(source, names)
    kinds = [path, f"../{path}", f"/{path}", f"{'../' * 9}{path}", f"/../{path}/./", f"{path}/../{names[0]}", ".", ".."]
    return source.choice(kinds)
