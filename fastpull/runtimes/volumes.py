"""Volumes, resolved in the image's own tree: a mount table is read outside of it, where its links lead elsewhere."""

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
    """The image with its volumes where they are in a tree, without symbolic links on the way, and warnings.

    A volume that leads to something else than a directory is left out; so is one whose links are a circle. Those that
    are no plain paths stay as they are, see `fastpull.runtimes.execution.Execution`.
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
