"""The peers: programs that unpack or convert images, and their commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from bench.sources import ImageSource
from tests.support.images.layouts import Layout

Commands = list[list[str]]
CommandFactory = Callable[[ImageSource, str], Commands]


def _nothing(_source: ImageSource, _folder: str) -> Commands:
    return []


@dataclass(frozen=True, slots=True)
class Peer:
    """A program, or a chain of programs, with its output.

    Attributes:
        name: display name.
        programs: programs it needs.
        commands: function of the image's source and an empty folder for all files; returns the commands to run in
            order.
        output: path of the output in that folder, a directory or a file.
        prepare: like `commands`, for commands run before the measurement.
        is_optional: whether it is left out where its programs are missing.
        is_comparable: whether its output has as many entries as those of the other peers.
        reads_zstd: whether it reads zstd layers.
    """

    name: str
    programs: tuple[str, ...]
    commands: CommandFactory
    output: str
    prepare: CommandFactory = _nothing
    is_optional: bool = False
    is_comparable: bool = True
    reads_zstd: bool = True


def fastpull(output: str, *options: str, is_cached: bool = False) -> Peer:
    """Pull, with or without the layers in the cache."""

    def commands(source: ImageSource, folder: str) -> Commands:
        path = os.path.join(folder, output)
        return [["fastpull", "pull", "--quiet", *_cache(folder), str(source), "-o", path, *options]]

    if is_cached:
        return Peer("fastpull, cached", ("fastpull",), commands, output, prepare=_warm())
    return Peer("fastpull", ("fastpull",), commands, output)


def fastpull_warm(*options: str) -> Peer:
    """Fetch and verify only."""
    return Peer("fastpull warm", ("fastpull",), _warm(*options), "cache", is_comparable=False)


def skopeo() -> Peer:
    """Fetch to a layout and verify only."""
    return Peer("skopeo", ("skopeo",), _copy, "layout", is_comparable=False)


def umoci(*, is_cached: bool = False) -> Peer:
    """Fetch to a layout unless cached, and unpack it."""
    if is_cached:
        return Peer("umoci", ("skopeo", "umoci"), _unpack_copy, "bundle/rootfs", prepare=_copy, reads_zstd=False)
    return Peer("skopeo+umoci", ("skopeo", "umoci"), _fetch_and_unpack, "bundle/rootfs", reads_zstd=False)


def umoci_from_layout() -> Peer:
    """Unpack the source, a layout."""
    return Peer("umoci", ("umoci",), _unpack, "bundle/rootfs", reads_zstd=False)


def mksquashfs(*options: str, is_cached: bool = False) -> Peer:
    """Fetch, unpack, and write a squashfs image."""

    def commands(source: ImageSource, folder: str) -> Commands:
        unpack = _unpack_copy if is_cached else _fetch_and_unpack
        return [*unpack(source, folder), _squash(folder, *options)]

    if is_cached:
        programs = ("skopeo", "umoci", "mksquashfs")
        return Peer("umoci+mksquashfs", programs, commands, _IMAGE, prepare=_copy, reads_zstd=False)
    return Peer("skopeo+umoci+mksquashfs", ("skopeo", "umoci", "mksquashfs"), commands, _IMAGE, reads_zstd=False)


def mksquashfs_from_layout(*options: str) -> Peer:
    """Unpack the source, a layout, and write a squashfs image."""

    def commands(source: ImageSource, folder: str) -> Commands:
        return [*_unpack(source, folder), _squash(folder, *options)]

    return Peer("umoci+mksquashfs", ("umoci", "mksquashfs"), commands, _IMAGE, reads_zstd=False)


def writer() -> Peer:
    """Write a squashfs image from the layers' tars, with fastpull's squashfs writer alone."""
    programs = ("fastpull", "gzip")
    return Peer("fastpull's writer", programs, _squash_tars, _IMAGE, prepare=_inflate, reads_zstd=False)


def tar2sqfs() -> Peer:
    """Write a squashfs image from a tar of the merged layers."""
    programs = ("tar2sqfs", "tar", "skopeo", "umoci")
    return Peer("tar2sqfs, flat tar", programs, _squash_tar, _IMAGE, prepare=_flat_tar, reads_zstd=False)


def podman() -> Peer:
    """Pull into a separate overlayfs storage, with one directory for each layer."""

    def commands(source: ImageSource, folder: str) -> Commands:
        # in a mount namespace, because the storage mounts itself permanently; the path of the runroot has to be short
        script = 'mount -t tmpfs none /mnt && exec podman --runroot /mnt "$@"'
        storage = ["--root", os.path.join(folder, "storage"), "--storage-driver", "overlay"]
        pull = [*storage, "--cgroup-manager=cgroupfs", "pull", "--quiet", "--tls-verify=false", source.reference]
        return [["unshare", "--mount", "sh", "-c", script, "sh", *pull]]

    return Peer("podman", ("podman", "unshare"), commands, "storage", is_optional=True, is_comparable=False)


def enroot() -> Peer:
    """Import with the defaults of enroot."""

    def commands(source: ImageSource, folder: str) -> Commands:
        host, _, image = source.reference.partition("/")
        names = ("CACHE", "DATA", "RUNTIME", "TEMP")
        settings = [f"ENROOT_{name}_PATH={os.path.join(folder, name.lower())}" for name in names]
        command = ["enroot", "import", "-o", os.path.join(folder, _IMAGE), f"docker://{host}#{image}"]
        return [["env", "ENROOT_ALLOW_HTTP=yes", *settings, *command]]

    return Peer("enroot", ("enroot",), commands, _IMAGE, is_optional=True, is_comparable=False)


def crane() -> Peer:
    """Fetch to a layout only."""

    def commands(source: ImageSource, folder: str) -> Commands:
        path = os.path.join(folder, "layout")
        return [["crane", "pull", "--insecure", "--format=oci", source.reference, path]]

    return Peer("crane", ("crane",), commands, "layout", is_optional=True, is_comparable=False)


def oras() -> Peer:
    """Fetch to a layout only."""

    def commands(source: ImageSource, folder: str) -> Commands:
        path = os.path.join(folder, "layout") + ":image"
        return [["oras", "copy", "--from-plain-http", source.reference, "--to-oci-layout", path]]

    return Peer("oras", ("oras",), commands, "layout", is_optional=True, is_comparable=False)


_IMAGE = "image.sqsh"


def _cache(folder: str) -> list[str]:
    return ["--cache", os.path.join(folder, "cache")]


def _warm(*options: str) -> CommandFactory:
    def commands(source: ImageSource, folder: str) -> Commands:
        return [["fastpull", "warm", "--quiet", *_cache(folder), *options, str(source)]]

    return commands


def _copy(source: ImageSource, folder: str) -> Commands:
    copy = ["skopeo", "--insecure-policy", "copy", "-q", "--src-tls-verify=false"]
    return [[*copy, str(source), f"oci:{_layout(folder)}"]]


def _layout(folder: str) -> str:
    return os.path.join(folder, "layout") + ":image"


def _unpack(source: ImageSource, folder: str) -> Commands:
    return [["umoci", "unpack", "--image", source.reference, os.path.join(folder, "bundle")]]


def _unpack_copy(_source: ImageSource, folder: str) -> Commands:
    return _unpack(ImageSource(_layout(folder)), folder)


def _fetch_and_unpack(source: ImageSource, folder: str) -> Commands:
    return [*_copy(source, folder), *_unpack_copy(source, folder)]


def _squash(folder: str, *options: str) -> list[str]:
    tree, image = os.path.join(folder, "bundle", "rootfs"), os.path.join(folder, _IMAGE)
    return ["mksquashfs", tree, image, "-noappend", "-no-progress", *options]


def _inflate(source: ImageSource, folder: str) -> Commands:
    script = 'exec gzip -dc "$1" > "$2"'
    tars = zip(_layers(source), _tars(source, folder), strict=True)
    return [["sh", "-c", script, "sh", blob, tar] for blob, tar in tars]


def _squash_tars(source: ImageSource, folder: str) -> Commands:
    image = os.path.join(folder, _IMAGE)
    return [[sys.executable, "-m", "bench.writer", image, *_tars(source, folder)]]


def _layers(source: ImageSource) -> list[str]:
    path, _, tag = source.reference.rpartition(":")
    return Layout("", path, tag).blobs()


def _tars(source: ImageSource, folder: str) -> list[str]:
    return [os.path.join(folder, f"{number}.tar") for number in range(len(_layers(source)))]


def _flat_tar(source: ImageSource, folder: str) -> Commands:
    tree = os.path.join(folder, "bundle", "rootfs")
    tar = ["tar", "--xattrs", "--xattrs-include=*", "--sort=name", "--numeric-owner", "-C", tree, "-cf"]
    return [*_fetch_and_unpack(source, folder), [*tar, os.path.join(folder, "flat.tar"), "."]]


def _squash_tar(_source: ImageSource, folder: str) -> Commands:
    # tar2sqfs reads only from standard input
    script = 'exec tar2sqfs -q -f -c zstd -X level=1 "$1" < "$2"'
    return [["sh", "-c", script, "sh", os.path.join(folder, _IMAGE), os.path.join(folder, "flat.tar")]]
