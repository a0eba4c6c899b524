"""The peers: programs that make something of an image, and how they are called."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from bench.sources import ImageSource
from tests.support.images.layouts import Layout

Commands = list[list[str]]
Maker = Callable[[ImageSource, str], Commands]


def _nothing(_source: ImageSource, _folder: str) -> Commands:
    return []


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to the output.

    Attributes:
        name: for people.
        programs: that it needs.
        commands: made of an image's source and the path of an empty folder, in which everything goes; they are run
            one after the other.
        output: the path of what they make in that folder: a directory, or a file.
        prepare: likewise, before the time is taken.
        is_optional: whether it is left out where its programs are missing.
        is_alike: whether the output has as many entries as that of others.
        reads_zstd: whether layers may be compressed with zstd.
    """

    name: str
    programs: tuple[str, ...]
    commands: Maker
    output: str
    prepare: Maker = _nothing
    is_optional: bool = False
    is_alike: bool = True
    reads_zstd: bool = True


def fastpull(output: str, *options: str, is_cached: bool = False) -> Peer:
    """Pulls, with layers in the cache or without."""

    def commands(source: ImageSource, folder: str) -> Commands:
        path = os.path.join(folder, output)
        return [["fastpull", "pull", "--quiet", *_cache(folder), str(source), "-o", path, *options]]

    if is_cached:
        return Peer("fastpull, cached", ("fastpull",), commands, output, prepare=_warm())
    return Peer("fastpull", ("fastpull",), commands, output)


def fastpull_warm(*options: str) -> Peer:
    """Only fetches and verifies."""
    return Peer("fastpull warm", ("fastpull",), _warm(*options), "cache", is_alike=False)


def skopeo() -> Peer:
    """Only fetches and verifies, to a layout."""
    return Peer("skopeo", ("skopeo",), _copy, "layout", is_alike=False)


def umoci(*, is_cached: bool = False) -> Peer:
    """Fetches to a layout, unless there is one, and unpacks that."""
    if is_cached:
        return Peer("umoci", ("skopeo", "umoci"), _unpack_copy, "bundle/rootfs", prepare=_copy, reads_zstd=False)
    return Peer("skopeo+umoci", ("skopeo", "umoci"), _fetch_and_unpack, "bundle/rootfs", reads_zstd=False)


def umoci_of_layout() -> Peer:
    """Unpacks the source, a layout."""
    return Peer("umoci", ("umoci",), _unpack, "bundle/rootfs", reads_zstd=False)


def mksquashfs(*options: str, is_cached: bool = False) -> Peer:
    """Fetches, unpacks, and makes squashfs of it."""

    def commands(source: ImageSource, folder: str) -> Commands:
        unpack = _unpack_copy if is_cached else _fetch_and_unpack
        return [*unpack(source, folder), _squash(folder, *options)]

    if is_cached:
        programs = ("skopeo", "umoci", "mksquashfs")
        return Peer("umoci+mksquashfs", programs, commands, _IMAGE, prepare=_copy, reads_zstd=False)
    return Peer("skopeo+umoci+mksquashfs", ("skopeo", "umoci", "mksquashfs"), commands, _IMAGE, reads_zstd=False)


def mksquashfs_of_layout(*options: str) -> Peer:
    """Unpacks the source, a layout, and makes squashfs of it."""

    def commands(source: ImageSource, folder: str) -> Commands:
        return [*_unpack(source, folder), _squash(folder, *options)]

    return Peer("umoci+mksquashfs", ("umoci", "mksquashfs"), commands, _IMAGE, reads_zstd=False)


def writer() -> Peer:
    """Makes squashfs of the tars of the layers of the source, a layout, with fastpull's own writer and nothing else."""
    programs = ("fastpull", "gzip")
    return Peer("fastpull's writer", programs, _squash_tars, _IMAGE, prepare=_inflate, reads_zstd=False)


def tar2sqfs() -> Peer:
    """Makes squashfs of a tar in which the layers are merged already."""
    programs = ("tar2sqfs", "tar", "skopeo", "umoci")
    return Peer("tar2sqfs, flat tar", programs, _squash_tar, _IMAGE, prepare=_flat_tar, reads_zstd=False)


def podman() -> Peer:
    """Pulls into a storage of its own, for overlayfs: a directory for each layer, none merged."""

    def commands(source: ImageSource, folder: str) -> Commands:
        # in a mount namespace, for the storage mounts itself, and would stay so; the path of a runroot has to be short
        script = 'mount -t tmpfs none /mnt && exec podman --runroot /mnt "$@"'
        storage = ["--root", os.path.join(folder, "storage"), "--storage-driver", "overlay"]
        pull = [*storage, "--cgroup-manager=cgroupfs", "pull", "--quiet", "--tls-verify=false", source.reference]
        return [["unshare", "--mount", "sh", "-c", script, "sh", *pull]]

    return Peer("podman", ("podman", "unshare"), commands, "storage", is_optional=True, is_alike=False)


def enroot() -> Peer:
    """Imports with enroot's own defaults."""

    def commands(source: ImageSource, folder: str) -> Commands:
        host, _, image = source.reference.partition("/")
        names = ("CACHE", "DATA", "RUNTIME", "TEMP")
        settings = [f"ENROOT_{name}_PATH={os.path.join(folder, name.lower())}" for name in names]
        command = ["enroot", "import", "-o", os.path.join(folder, _IMAGE), f"docker://{host}#{image}"]
        return [["env", "ENROOT_ALLOW_HTTP=yes", *settings, *command]]

    return Peer("enroot", ("enroot",), commands, _IMAGE, is_optional=True, is_alike=False)


def crane() -> Peer:
    """Only fetches, to a layout."""

    def commands(source: ImageSource, folder: str) -> Commands:
        path = os.path.join(folder, "layout")
        return [["crane", "pull", "--insecure", "--format=oci", source.reference, path]]

    return Peer("crane", ("crane",), commands, "layout", is_optional=True, is_alike=False)


def oras() -> Peer:
    """Only fetches, to a layout."""

    def commands(source: ImageSource, folder: str) -> Commands:
        path = os.path.join(folder, "layout") + ":image"
        return [["oras", "copy", "--from-plain-http", source.reference, "--to-oci-layout", path]]

    return Peer("oras", ("oras",), commands, "layout", is_optional=True, is_alike=False)


_IMAGE = "image.sqsh"


def _cache(folder: str) -> list[str]:
    return ["--cache", os.path.join(folder, "cache")]


def _warm(*options: str) -> Maker:
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
    # it reads from standard input only
    script = 'exec tar2sqfs -q -f -c zstd -X level=1 "$1" < "$2"'
    return [["sh", "-c", script, "sh", os.path.join(folder, _IMAGE), os.path.join(folder, "flat.tar")]]
