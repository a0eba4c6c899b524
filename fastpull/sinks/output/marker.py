"""Markers: an extended attribute in which an output says what it is.

A directory has it on its root, a squashfs image or tar on the file. By it fastpull knows what it has made, and whether
that is what it would make again. It is a note, no seal: whoever may write to the output can change both.
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
"""Of the attribute."""

TREE_VERSION = 2
"""Raised by every change after which the same image gives another tree."""

_VERSION = 1
_MAX_SIZE = 4 << 10  # what ext4 has room for
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_READ_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class OutputIdentity:
    """All that decides what an output is.

    Attributes:
        image: digest of the manifest.
        platform: of the image.
        recipe: all else, as JSON has it: the format with its options, owners, runtimes; None where it is not known.
    """

    image: str
    platform: str
    recipe: Mapping[str, Any] | None

    @classmethod
    def of(cls, image: Image, facts: Mapping[str, Any], runtimes: Sequence[str] | None) -> Self:
        """The identity of an output.

        Args:
            image: that it is made of.
            facts: of the sink.
            runtimes: names of those that it is made for; None where one of them is the caller's own.
        """
        recipe = None if runtimes is None else dict(facts)
        if recipe is not None and runtimes:  # what they add may name the source, and depends on who may do what
            recipe |= {"runtimes": sorted(runtimes), "source": image.source, "user": os.geteuid()}
        return cls(str(image.digest), str(image.platform), recipe)


@dataclass(frozen=True, slots=True)
class Marker:
    """What the attribute says.

    Attributes:
        identity: of the output.
        inode: number of the output's own: a copy is another output.
        inodes: in the root filesystem, for reports.
        synced: it was on its disk before it appeared.
        boot: of the host that made it.
        size, mtime_ns: of a file.
        fingerprint: of a file, XXH3-64 in hexadecimal; empty where it was not known without reading the file again.
        version: of the marker.
        tree: of the rules by which trees are made.
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
        """The marker as the attribute holds it."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """Reads a marker; None for anything that is not one of this version."""
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
    """What a sink knows of its output before it publishes it; the rest of the marker is in the output's state.

    Attributes:
        identity: of the output.
        inodes: in the root filesystem.
        fingerprint: see `Marker`.
    """

    identity: OutputIdentity
    inodes: int
    fingerprint: str = ""

    @classmethod
    def of(cls, identity: OutputIdentity | None, inodes: int, fingerprint: str = "") -> Self | None:
        """The label of an output; none for one without an identity, which gets no marker."""
        return None if identity is None else cls(identity, inodes, fingerprint)

    def marker(self, state: os.stat_result, *, synced: bool) -> Marker:
        """The marker of the output.

        Args:
            state: of the directory or file.
            synced: it will be on its disk before it appears.
        """
        marker = Marker(self.identity, state.st_ino, self.inodes, synced)
        if stat.S_ISDIR(state.st_mode):
            return marker
        return replace(marker, size=state.st_size, mtime_ns=state.st_mtime_ns, fingerprint=self.fingerprint)


def write_marker(fd: int, label: Label | None, *, synced: bool) -> None:
    """Puts a marker on a directory or file; where the filesystem has no place for it, there is none.

    Args:
        fd: of the output.
        label: for the marker; without one there is none.
        synced: the output will be on its disk before it appears.
    """
    if label is None:
        return
    with contextlib.suppress(OSError):
        content = label.marker(os.fstat(fd), synced=synced).to_bytes()
        if len(content) <= _MAX_SIZE:
            os.setxattr(fd, MARKER_NAME, content)


def is_marked(fd: int) -> bool:
    """Whether a directory has a marker of its own, of whatever version."""
    try:
        value = json.loads(os.getxattr(fd, MARKER_NAME))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("inode") == os.fstat(fd).st_ino


def read_marker(fd: int) -> Marker | None:
    """The marker of what is open, if it can be believed.

    It can be if nobody else may have made or changed what is there; no power cut can have come before it was on its
    disk; and a file has the size and time that it was published with, or its fingerprint. A directory is not looked
    into.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        marker = Marker.from_bytes(os.getxattr(fd, MARKER_NAME))
    except OSError:
        return None
    state = os.fstat(fd)
    if marker is None or not is_believable(marker, state, os.geteuid(), boot_id()):
        return None
    if stat.S_ISREG(state.st_mode) and state.st_mtime_ns != marker.mtime_ns and _fingerprint(fd) != marker.fingerprint:
        return None
    return marker


def is_believable(marker: Marker, state: os.stat_result, user: int, boot: str) -> bool:
    """Whether a marker may be what this user, or root, has put there, for what is there now.

    Args:
        marker: of the output.
        state: of it.
        user: who asks.
        boot: of this host.
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
