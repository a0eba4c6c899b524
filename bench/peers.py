"""The peers: programs that make something of an image in a registry, in contests of those that make the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

Commands = list[list[str]]
Maker = Callable[[str, str], Commands]


def _nothing(_reference: str, _folder: str) -> Commands:
    return []


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to the output.

    Attributes:
        name: for people.
        programs: that it needs.
        commands: made of an image's reference and the path of an empty folder, in which everything goes; they are run
            one after the other.
        output: the path of what they make in that folder: a directory, or a squashfs file.
        prepare: likewise, before the time is taken.
    """

    name: str
    programs: tuple[str, ...]
    commands: Maker
    output: str
    prepare: Maker = _nothing


@dataclass(frozen=True, slots=True)
class Contest:
    """Peers that make the same.

    Attributes:
        name: for people.
        peers: the last one is what the others are compared with.
    """

    name: str
    peers: tuple[Peer, ...]

    @property
    def yardstick(self) -> str:
        """The name of the peer that the others are compared with."""
        return self.peers[-1].name


def _pull(output: str, *options: str) -> Maker:
    def commands(reference: str, folder: str) -> Commands:
        cache, path = os.path.join(folder, "cache"), os.path.join(folder, output)
        return [["fastpull", "pull", "--quiet", "--cache", cache, f"docker://{reference}", "-o", path, *options]]

    return commands


def _warm(reference: str, folder: str) -> Commands:
    return [["fastpull", "warm", "--quiet", "--cache", os.path.join(folder, "cache"), f"docker://{reference}"]]


def _unpack(reference: str, folder: str) -> Commands:
    layout = os.path.join(folder, "layout") + ":image"
    copy = ["skopeo", "--insecure-policy", "copy", "-q", "--src-tls-verify=false"]
    return [
        [*copy, f"docker://{reference}", f"oci:{layout}"],
        ["umoci", "unpack", "--image", layout, os.path.join(folder, "bundle")],
    ]


def _unpack_and_squash(*options: str) -> Maker:
    def commands(reference: str, folder: str) -> Commands:
        tree, image = os.path.join(folder, "bundle", "rootfs"), os.path.join(folder, "image.sqsh")
        return [*_unpack(reference, folder), ["mksquashfs", tree, image, "-noappend", "-no-progress", *options]]

    return commands


def _flat_tar(reference: str, folder: str) -> Commands:
    tree = os.path.join(folder, "bundle", "rootfs")
    tar = ["tar", "--xattrs", "--xattrs-include=*", "--sort=name", "--numeric-owner", "-C", tree, "-cf"]
    return [*_unpack(reference, folder), [*tar, os.path.join(folder, "flat.tar"), "."]]


def _squash_tar(_reference: str, folder: str) -> Commands:
    # it reads from standard input only
    script = 'exec tar2sqfs -q -f -c zstd -X level=1 "$1" < "$2"'
    return [["sh", "-c", script, "sh", os.path.join(folder, "image.sqsh"), os.path.join(folder, "flat.tar")]]


_CHAIN = ("skopeo", "umoci")
_ZSTD = ("-comp", "zstd", "-Xcompression-level", "1")

CONTESTS = (
    Contest(
        "directory",
        (
            Peer("fastpull", ("fastpull",), _pull("rootfs"), "rootfs"),
            Peer("skopeo+umoci", _CHAIN, _unpack, "bundle/rootfs"),
        ),
    ),
    Contest(
        "squashfs",
        (
            Peer("fastpull", ("fastpull",), _pull("image.sqsh"), "image.sqsh"),
            Peer("skopeo+umoci+mksquashfs", (*_CHAIN, "mksquashfs"), _unpack_and_squash(*_ZSTD), "image.sqsh"),
        ),
    ),
    Contest(
        "squashfs, raw",  # enroot's default
        (
            Peer("fastpull", ("fastpull",), _pull("image.sqsh", "--compression", "none"), "image.sqsh"),
            Peer(
                "skopeo+umoci+mksquashfs",
                (*_CHAIN, "mksquashfs"),
                _unpack_and_squash("-comp", "lzo", "-noD"),
                "image.sqsh",
            ),
        ),
    ),
    Contest(
        "squashfs, cached",
        (
            Peer("fastpull, cached", ("fastpull",), _pull("image.sqsh"), "image.sqsh", prepare=_warm),
            Peer("tar2sqfs, flat tar", ("tar2sqfs", "tar", *_CHAIN), _squash_tar, "image.sqsh", prepare=_flat_tar),
        ),
    ),
)
