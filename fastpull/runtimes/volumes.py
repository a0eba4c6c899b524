"""Volumes, resolved inside the image's tree: runtimes read mount tables outside of it, where links lead elsewhere."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from fastpull.layers.tree import DirectoryNode
from fastpull.runtimes.text import is_plain_path, listed

if TYPE_CHECKING:
    from fastpull.layers.tree import Tree
    from fastpull.oci.image import Image


def resolve_volumes(image: Image, tree: Tree) -> tuple[Image, list[str]]:
    """Return the image with the symbolic links of its volumes resolved in a tree, and warnings.

    A volume that is not a directory, or whose links form a loop, is left out. Volumes that are no plain paths stay
    unchanged, see `fastpull.runtimes.execution.Execution`.
    """
    found: set[str] = set()
    blocked: list[str] = []
    for volume in image.config.volumes:
        if not is_plain_path(volume):
            found.add(volume)
            continue
        place = tree.locate(volume.encode())
        if place.blocked or not (place.node is None or isinstance(place.node, DirectoryNode)):
            blocked.append(volume)
        else:
            found.add("/" + os.fsdecode(place.path))
    warnings = [f"no directory of the image can be a volume at {listed(blocked)}: left out"] if blocked else []
    return replace(image, config=replace(image.config, volumes=tuple(sorted(found)))), warnings
