"""Sinks whose output is more than a root filesystem: small files beside it, which appear together with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fastpull.concurrency.writes import pwrite_all
from fastpull.errors import InvalidSetting
from fastpull.runtimes.base import OutputShape, RuntimeProfile
from fastpull.runtimes.choose import shape_of
from fastpull.sinks.base import Resources, Sink, SinkReport
from fastpull.sinks.directory.sink import Directory
from fastpull.sinks.output.file_staging import FileStaging
from fastpull.sinks.output.marker import Label, write_marker
from fastpull.sinks.output.staging import Staging, output_errors
from fastpull.sinks.squashfs.sink import Squashfs

if TYPE_CHECKING:
    from fastpull.layers.tree import Tree
    from fastpull.native import EntryTable
    from fastpull.sinks.base import LayerWriter
    from fastpull.sinks.output.marker import Marker, OutputIdentity

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

ROOTFS = "rootfs"
"""The directory of a bundle that holds the root filesystem."""


class ShapedSink(Sink, Protocol):
    """A sink that takes files to be beside its root filesystem."""

    def set_sidecars(self, files: Mapping[str, bytes], /) -> None:
        """Takes the files, by name or by ending; to be called before `commit`."""


def shaped(sink: Sink, profiles: Sequence[RuntimeProfile]) -> Sink:
    """Puts around a sink what runtimes want to have around a root filesystem.

    Args:
        sink: as the caller made it.
        profiles: of the runtimes.

    Raises:
        InvalidSetting: this kind of sink is of no use to a runtime.
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
        case output_shape:
            kind = "a directory, such as NAME/" if output_shape is OutputShape.BUNDLE else "a file such as ID.squashfs"
            raise InvalidSetting(str(getattr(sink, "path", sink)), f"the output for {names} has to be {kind}")


class BundleSink:
    """A directory with the root filesystem in it, at ``rootfs``, and files beside that; published by one rename.

    Args:
        sink: says where, and how the root filesystem is to be.
    """

    def __init__(self, sink: Directory) -> None:
        self.path = sink.path
        self._template = sink
        self._inner: Directory | None = None
        self._staging = Staging(sink.path, sink.rules)
        self._identity: OutputIdentity | None = None
        self._files: Mapping[str, bytes] = {}
        self._sync = False

    def __repr__(self) -> str:
        return f"<BundleSink {self.path!r}>"

    def recipe_facts(self) -> dict[str, Any]:
        """See `fastpull.sinks.base.MarkedSink`."""
        return self._template.recipe_facts()

    def read_marker(self) -> Marker | None:
        """See `fastpull.sinks.base.MarkedSink`."""
        return self._staging.read_marker()

    def set_identity(self, identity: OutputIdentity) -> None:
        """See `fastpull.sinks.base.MarkedSink`."""
        self._identity = identity

    def begin(self, resources: Resources) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._sync = resources.sync
        self._staging.create(resources.keep_out)
        # the path of a descriptor is the staging's, whatever its name
        self._inner = self._template.at(f"/proc/self/fd/{self._staging.root_fd}/{ROOTFS}")
        self._inner.begin(resources)

    def room(self) -> int:
        """See `fastpull.sinks.base.Sink`."""
        return self._begun.room()

    def layer(self, number: int, rank: int, entries: EntryTable, wanted: bytearray | None, /) -> LayerWriter:
        """See `fastpull.sinks.base.Sink`."""
        return self._begun.layer(number, rank, entries, wanted)

    def set_sidecars(self, files: Mapping[str, bytes], /) -> None:
        """See `ShapedSink`."""
        self._files = files

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
        left = self._staging.publish(self._sync)
        if left is not None:
            report.warnings.append(f"the output is complete, but what it replaces could not be removed ({left})")
        return report

    def cancel(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        if self._inner is not None:
            self._inner.cancel()

    def abort(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        try:
            if self._inner is not None:
                self._inner.abort()
        finally:
            self._inner = None
            self._staging.remove()

    @property
    def _begun(self) -> Directory:
        assert self._inner is not None, "the sink has begun"
        return self._inner


class SidecarSink:
    """A squashfs image, and files beside it that have its name with other endings.

    The image appears first, and the others right after it.

    Args:
        sink: of the image.
        endings: of the files.
    """

    def __init__(self, sink: Squashfs, endings: Sequence[str]) -> None:
        self.path = sink.path
        self._sink = sink
        stem = os.path.splitext(sink.path)[0]
        self._stagings = {ending: FileStaging(stem + ending, sink.force) for ending in endings}
        self._files: Mapping[str, bytes] = {}
        self._identity: OutputIdentity | None = None
        self._sync = False

    def __repr__(self) -> str:
        return f"<SidecarSink {self.path!r}>"

    def recipe_facts(self) -> dict[str, Any]:
        """See `fastpull.sinks.base.MarkedSink`."""
        return self._sink.recipe_facts()

    def read_marker(self) -> Marker | None:
        """See `fastpull.sinks.base.MarkedSink`: the image's, if the other files have it as well."""
        marker = self._sink.read_marker()
        if marker is None:
            return None
        others = [staging.read_marker() for staging in self._stagings.values()]
        return marker if all(other is not None and other.identity == marker.identity for other in others) else None

    def set_identity(self, identity: OutputIdentity) -> None:
        """See `fastpull.sinks.base.MarkedSink`."""
        self._identity = identity
        self._sink.set_identity(identity)

    def begin(self, resources: Resources) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._sync = resources.sync
        self._sink.begin(resources)
        for staging in self._stagings.values():
            staging.create(resources.keep_out)

    def room(self) -> int:
        """See `fastpull.sinks.base.Sink`."""
        return self._sink.room()

    def layer(self, number: int, rank: int, entries: EntryTable, wanted: bytearray | None, /) -> LayerWriter:
        """See `fastpull.sinks.base.Sink`."""
        return self._sink.layer(number, rank, entries, wanted)

    def set_sidecars(self, files: Mapping[str, bytes], /) -> None:
        """See `ShapedSink`."""
        self._files = files

    def commit(self, tree: Tree, created: int = 0, /) -> SinkReport:
        """See `fastpull.sinks.base.Sink`."""
        for ending, staging in self._stagings.items():
            with output_errors(staging.destination):
                pwrite_all(staging.fd, 0, [self._files[ending]])
        report = self._sink.commit(tree, created)
        for staging in self._stagings.values():
            staging.publish(self._sync, Label.of(self._identity, report.inodes))
        return report

    def cancel(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._sink.cancel()

    def abort(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        try:
            self._sink.abort()
        finally:
            for staging in self._stagings.values():
                staging.remove()
