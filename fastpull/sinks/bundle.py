"""Outputs with more than a root filesystem: OCI bundles, and images with sidecar files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastpull.concurrency.writes import pwrite_all
from fastpull.errors import InvalidSetting
from fastpull.runtimes.base import OutputShape, RuntimeProfile
from fastpull.runtimes.choose import shape_of
from fastpull.sinks.capabilities import NamedSink
from fastpull.sinks.directory.sink import Directory
from fastpull.sinks.output.directory_staging import DirectoryStaging
from fastpull.sinks.output.errors import output_errors
from fastpull.sinks.output.file_staging import FileStaging
from fastpull.sinks.output.marker import Label, write_marker
from fastpull.sinks.squashfs.sink import Squashfs

if TYPE_CHECKING:
    from fastpull.layers.tree import Tree
    from fastpull.native import EntryTable
    from fastpull.sinks.base import LayerWriter, Resources, Sink, SinkReport
    from fastpull.sinks.output.marker import Marker, OutputIdentity

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

ROOTFS = "rootfs"
"""The directory of a bundle that holds the root filesystem."""


def shaped(sink: Sink, profiles: Sequence[RuntimeProfile]) -> Sink:
    """Return a sink whose output has the shape that runtimes need.

    Args:
        sink: sink for the root filesystem.
        profiles: profiles of the runtimes.

    Raises:
        InvalidSetting: the runtimes cannot use this kind of output.
    """
    names = ", ".join(profile.name for profile in profiles)
    if any(profile.has_one_owner for profile in profiles) and isinstance(sink, Directory):
        if sink.owner == "keep":
            raise InvalidSetting("keep", f"for {names} everything has one owner, leave --owner out")
        sink = sink.at(sink.path, owner="me")
    match shape_of(profiles):
        case OutputShape.ROOTFS:
            return sink
        case OutputShape.BUNDLE if isinstance(sink, Directory):
            return BundleSink(sink)
        case OutputShape.SIDECARS if isinstance(sink, Squashfs):
            return SidecarSink(sink, [ending for profile in profiles for ending in profile.sidecar_names])
        case shape:
            kind = "a directory, such as NAME/" if shape is OutputShape.BUNDLE else "a file such as ID.squashfs"
            name = sink.path if isinstance(sink, NamedSink) else str(sink)
            raise InvalidSetting(name, f"the output for {names} has to be {kind}")


class BundleSink:
    """A directory with the root filesystem in ``rootfs`` and sidecar files beside it, published by one rename.

    Args:
        sink: directory sink with the path and the options of the output.
    """

    def __init__(self, sink: Directory) -> None:
        self.path = sink.path
        self._template = sink
        self._rootfs: Directory | None = None
        self._staging = DirectoryStaging(sink.path, sink.rules)
        self._identity: OutputIdentity | None = None
        self._files: Mapping[str, bytes] = {}
        self._sync = False

    def __repr__(self) -> str:
        return f"<BundleSink {self.path!r}>"

    def recipe_facts(self) -> dict[str, Any]:
        """See `fastpull.sinks.capabilities.MarkedSink`."""
        return self._template.recipe_facts()

    def read_marker(self) -> Marker | None:
        """See `fastpull.sinks.capabilities.MarkedSink`."""
        return self._staging.read_marker()

    def set_identity(self, identity: OutputIdentity) -> None:
        """See `fastpull.sinks.capabilities.MarkedSink`."""
        self._identity = identity

    def set_sidecars(self, files: Mapping[str, bytes], /) -> None:
        """See `fastpull.sinks.capabilities.SidecarFilesSink`."""
        self._files = files

    def begin(self, resources: Resources) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._sync = resources.sync
        self._staging.create(resources.keep_out)
        # the path of the descriptor stays valid when the staging is renamed
        self._rootfs = self._template.at(f"/proc/self/fd/{self._staging.root_fd}/{ROOTFS}")
        self._rootfs.begin(resources)

    def room(self) -> int:
        """See `fastpull.sinks.base.Sink`."""
        return self._begun.room()

    def layer(self, number: int, rank: int, entries: EntryTable, wanted: bytearray | None, /) -> LayerWriter:
        """See `fastpull.sinks.base.Sink`."""
        return self._begun.layer(number, rank, entries, wanted)

    def commit(self, tree: Tree, created: int = 0, /) -> SinkReport:
        """See `fastpull.sinks.base.Sink`."""
        report = self._begun.commit(tree, created)
        report.path = self.path
        with output_errors(self._staging.destination):
            for name, content in self._files.items():
                fd = os.open(name, _NEW, 0o644, dir_fd=self._staging.root_fd)
                try:
                    pwrite_all(fd, 0, [content])
                finally:
                    os.close(fd)
            write_marker(self._staging.root_fd, Label.of(self._identity, report.inodes), synced=self._sync)
            os.fchmod(self._staging.root_fd, 0o755)
        report.warnings += self._staging.publish(self._sync)
        return report

    def cancel(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        if self._rootfs is not None:
            self._rootfs.cancel()

    def abort(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        try:
            if self._rootfs is not None:
                self._rootfs.abort()
        finally:
            self._rootfs = None
            self._staging.remove()

    @property
    def _begun(self) -> Directory:
        assert self._rootfs is not None, "the sink has begun"
        return self._rootfs


class SidecarSink:
    """A squashfs image with sidecar files, which have the image's name with other endings.

    The image is published first, and the sidecar files right after it.

    Args:
        sink: sink for the image.
        endings: endings of the sidecar files.
    """

    def __init__(self, sink: Squashfs, endings: Sequence[str]) -> None:
        self.path = sink.path
        self._image = sink
        stem = os.path.splitext(sink.path)[0]
        self._stagings = {ending: FileStaging(stem + ending, sink.force) for ending in endings}
        self._files: Mapping[str, bytes] = {}
        self._identity: OutputIdentity | None = None
        self._sync = False

    def __repr__(self) -> str:
        return f"<SidecarSink {self.path!r}>"

    def recipe_facts(self) -> dict[str, Any]:
        """See `fastpull.sinks.capabilities.MarkedSink`."""
        return self._image.recipe_facts()

    def read_marker(self) -> Marker | None:
        """Return the image's marker if all sidecar files have the same identity.

        See `fastpull.sinks.capabilities.MarkedSink`.
        """
        marker = self._image.read_marker()
        if marker is None:
            return None
        others = [staging.read_marker() for staging in self._stagings.values()]
        return marker if all(other is not None and other.identity == marker.identity for other in others) else None

    def set_identity(self, identity: OutputIdentity) -> None:
        """See `fastpull.sinks.capabilities.MarkedSink`."""
        self._identity = identity
        self._image.set_identity(identity)

    def set_sidecars(self, files: Mapping[str, bytes], /) -> None:
        """See `fastpull.sinks.capabilities.SidecarFilesSink`."""
        self._files = files

    def begin(self, resources: Resources) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._sync = resources.sync
        self._image.begin(resources)
        for staging in self._stagings.values():
            staging.create(resources.keep_out)

    def room(self) -> int:
        """See `fastpull.sinks.base.Sink`."""
        return self._image.room()

    def layer(self, number: int, rank: int, entries: EntryTable, wanted: bytearray | None, /) -> LayerWriter:
        """See `fastpull.sinks.base.Sink`."""
        return self._image.layer(number, rank, entries, wanted)

    def commit(self, tree: Tree, created: int = 0, /) -> SinkReport:
        """See `fastpull.sinks.base.Sink`."""
        for ending, staging in self._stagings.items():
            with output_errors(staging.destination):
                pwrite_all(staging.fd, 0, [self._files[ending]])
        report = self._image.commit(tree, created)
        for staging in self._stagings.values():
            staging.publish(self._sync, Label.of(self._identity, report.inodes))
        return report

    def cancel(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._image.cancel()

    def abort(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        try:
            self._image.abort()
        finally:
            for staging in self._stagings.values():
                staging.remove()
