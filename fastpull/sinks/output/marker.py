"""Markers: the extended attribute that describes an output, on the directory or the file itself.

A marker tells which outputs fastpull made, and whether a pull would make the same output again. It is not protected:
everyone with write access to the output can change the marker, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import xxhash

from fastpull.cache.blob_metadata import boot_id

if TYPE_CHECKING:
    from fastpull.oci.image import Image

MARKER_NAME = "user.fastpull.image"
"""The name of the extended attribute."""

TREE_VERSION = 2
"""Version of the rules for trees; raised by every change that gives the same image another tree."""

_VERSION = 1
_MAX_SIZE = 4 << 10  # bytes that ext4 can store
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_READ_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class OutputIdentity:
    """Everything that decides the content of an output.

    Attributes:
        image: digest of the manifest.
        platform: platform of the image.
        recipe: format, options, owners and runtimes, as JSON values; None if they are unknown.
    """

    image: str
    platform: str
    recipe: Mapping[str, Any] | None

    @classmethod
    def of(cls, image: Image, facts: Mapping[str, Any], runtimes: Sequence[str] | None) -> Self:
        """Return the identity of an output.

        Args:
            image: image of the output.
            facts: recipe facts of the sink.
            runtimes: names of the runtime profiles; None if the caller has defined one of them.
        """
        recipe = None if runtimes is None else dict(facts)
        if recipe is not None and runtimes:  # additions may contain the source, and depend on the user
            recipe |= {"runtimes": sorted(runtimes), "source": image.source, "user": os.geteuid()}
        return cls(str(image.digest), str(image.platform), recipe)


@dataclass(frozen=True, slots=True)
class Marker:
    """The content of the attribute.

    Attributes:
        identity: identity of the output.
        inode: inode number of the output, so that the marker of a copy is invalid.
        inodes: number of inodes in the root filesystem, for reports.
        synced: whether the output was synchronised to its disk before it was published.
        boot: boot id of the host that made the output.
        size, mtime_ns: size and modification time of a file.
        fingerprint: XXH3-64 of a file in hexadecimal; empty if computing it would need another read of the file.
        version: version of the marker format.
        tree: version of the rules for trees.
    """

    identity: OutputIdentity
    inode: int
    inodes: int
    synced: bool
    boot: str = field(default_factory=boot_id)
    size: int = 0
    mtime_ns: int = 0
    fingerprint: str = ""
    version: int = _VERSION
    tree: int = TREE_VERSION

    def to_bytes(self) -> bytes:
        """Return the value of the attribute."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """Parse the value of the attribute; return None unless it is a marker of this version."""
        try:
            value = json.loads(content)
            identity = value.pop("identity")
            recipe = None if identity["recipe"] is None else dict(identity["recipe"])
            marker = cls(OutputIdentity(str(identity["image"]), str(identity["platform"]), recipe), **value)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        kinds = (int, int, bool, str, int, int, str, int, int)
        values = [value for name, value in asdict(marker).items() if name != "identity"]
        is_sound = all(type(value) is kind for value, kind in zip(values, kinds, strict=True))
        return marker if is_sound and marker.version == _VERSION else None


@dataclass(frozen=True, slots=True)
class Label:
    """The part of a marker that the sink knows; the rest is taken from the state of the output.

    Attributes:
        identity: identity of the output.
        inodes: number of inodes in the root filesystem.
        fingerprint: see `Marker`.
    """

    identity: OutputIdentity
    inodes: int
    fingerprint: str = ""

    @classmethod
    def of(cls, identity: OutputIdentity | None, inodes: int, fingerprint: str = "") -> Self | None:
        """Return the label of an output; None without an identity, for no marker."""
        return None if identity is None else cls(identity, inodes, fingerprint)

    def marker(self, state: os.stat_result, *, synced: bool) -> Marker:
        """Return the marker of the output.

        Args:
            state: state of the directory or file.
            synced: whether the output is synchronised to its disk before it is published.
        """
        marker = Marker(self.identity, state.st_ino, self.inodes, synced)
        if stat.S_ISDIR(state.st_mode):
            return marker
        return replace(marker, size=state.st_size, mtime_ns=state.st_mtime_ns, fingerprint=self.fingerprint)


def write_marker(fd: int, label: Label | None, *, synced: bool) -> None:
    """Write the marker of a directory or file, if the filesystem can store it.

    Args:
        fd: open output.
        label: label of the output; None for no marker.
        synced: whether the output is synchronised to its disk before it is published.
    """
    if label is None:
        return
    with contextlib.suppress(OSError):
        content = label.marker(os.fstat(fd), synced=synced).to_bytes()
        if len(content) <= _MAX_SIZE:
            os.setxattr(fd, MARKER_NAME, content)


def is_marked(fd: int) -> bool:
    """Return whether a directory has its own marker, of any version."""
    try:
        value = json.loads(os.getxattr(fd, MARKER_NAME))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("inode") == os.fstat(fd).st_ino


def read_marker(fd: int) -> Marker | None:
    """Return the marker of an open output; None if it is missing or invalid.

    A marker is valid if no other user can have changed the output, no power failure can have damaged it, and a file has
    the recorded size and time, or the recorded fingerprint. The content of a directory is not checked.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        marker = Marker.from_bytes(os.getxattr(fd, MARKER_NAME))
    except OSError:
        return None
    state = os.fstat(fd)
    if marker is None or not is_valid(marker, state, os.geteuid(), boot_id()):
        return None
    if stat.S_ISREG(state.st_mode) and state.st_mtime_ns != marker.mtime_ns and _fingerprint(fd) != marker.fingerprint:
        return None
    return marker


def is_valid(marker: Marker, state: os.stat_result, user: int, boot: str) -> bool:
    """Return whether a marker describes the output and was written by the user or root.

    Args:
        marker: marker of the output.
        state: state of the output.
        user: id of the user.
        boot: boot id of this host.
    """
    if (marker.inode, marker.tree) != (state.st_ino, TREE_VERSION):
        return False
    if state.st_uid not in (0, user) or state.st_mode & _OTHERS_MAY_WRITE:
        return False
    if not marker.synced and marker.boot != boot:
        return False
    if stat.S_ISDIR(state.st_mode):
        return True
    return state.st_size == marker.size and (state.st_mtime_ns == marker.mtime_ns or bool(marker.fingerprint))


def _fingerprint(fd: int) -> str:
    hasher, buffer, at = xxhash.xxh3_64(), bytearray(_READ_SIZE), 0
    view = memoryview(buffer)
    while size := os.preadv(fd, [buffer], at):
        hasher.update(view[:size])
        at += size
    return hasher.hexdigest()
