"""The peers: programs that make a directory of an image in a registry."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

Commands = list[list[str]]


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to the root filesystem.

    Attributes:
        name: for people.
        programs: that it needs.
        commands: made of an image's reference and the path of an empty folder, in which everything goes; they are run
            one after the other.
        tree: the root filesystem's path in that folder.
    """

    name: str
    programs: tuple[str, ...]
    commands: Callable[[str, str], Commands]
    tree: str


def _fastpull(reference: str, folder: str) -> Commands:
    cache, tree = os.path.join(folder, "cache"), os.path.join(folder, "rootfs")
    return [["fastpull", "pull", "--quiet", "--cache", cache, f"docker://{reference}", "-o", tree]]


def _skopeo_umoci(reference: str, folder: str) -> Commands:
    layout = os.path.join(folder, "layout") + ":image"
    copy = ["skopeo", "--insecure-policy", "copy", "-q", "--src-tls-verify=false"]
    return [
        [*copy, f"docker://{reference}", f"oci:{layout}"],
        ["umoci", "unpack", "--image", layout, os.path.join(folder, "bundle")],
    ]


YARDSTICK = "skopeo+umoci"
"""The name of the peer that the others are compared with."""

PEERS = (
    Peer("fastpull", ("fastpull",), _fastpull, "rootfs"),
    Peer(YARDSTICK, ("skopeo", "umoci"), _skopeo_umoci, "bundle/rootfs"),
)
