"""The sink protocol: what every output format implements. Optional abilities are in `fastpull.sinks.capabilities`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from fastpull.telemetry.timing import PullTimer

if TYPE_CHECKING:
    from fastpull.layers.tree import Tree
    from fastpull.native import EntryTable, Spans


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources of a sink.

    Attributes:
        workers: maximum number of computing threads.
        layers: maximum number of layers that are written at the same time.
        memory: bytes for buffers, for all layers together.
        sync: whether the output is synchronised to its disk before it is published.
        keep_out: directories that the output must not replace, contain or be in: the cache.
        meter: timer of the pull.
    """

    workers: int = 1
    layers: int = 1
    memory: int = 64 << 20
    sync: bool = False
    keep_out: tuple[str, ...] = ()
    meter: PullTimer = field(default_factory=PullTimer)


@dataclass(slots=True)
class SinkReport:
    """The report on an output.

    Attributes:
        path: path of the output.
        inodes: number of inodes: files, directories and others; hard links count once.
        left_out: number of parts that the output does not have, by kind: ``devices``, ``xattrs``, ``setuid bits``.
        warnings: other warnings, one sentence each.
    """

    path: str
    inodes: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)


class LayerWriter(Protocol):
    """Writes the payload of one layer while the layer is scanned."""

    def write(self, chunk: bytes, spans: Spans) -> None:
        """Store the payload of a chunk.

        Args:
            chunk: bytes of the layer; not kept after the call.
            spans: positions of payload in the chunk; not kept after the call.

        Raises:
            OutputError: the payload cannot be stored.
        """

    def finish(self) -> None:
        """Store everything that is still buffered. Called once, at the end of the layer.

        Raises:
            OutputError: the payload cannot be stored.
        """

    def close(self) -> None:
        """Release the writer's resources, whether the layer is complete or not. May be called twice."""


class Sink(Protocol):
    """Makes one output. All methods block; `layer` and its writers are called from several threads at once.

    The order of calls is `begin`, `layer` for each layer in any order, then `commit`. `abort` may be called at any
    time. After `commit` or `abort` the sink may begin again.
    """

    def begin(self, resources: Resources) -> None:
        """Create the staging beside the destination.

        Raises:
            OutputExists, OutputError: the destination cannot be written.
        """

    def room(self) -> int:
        """Return the free bytes on the filesystem of the output. Valid after `begin`."""

    def layer(self, number: int, rank: int, entries: EntryTable, wanted: bytearray | None, /) -> LayerWriter:
        """Return the writer of a layer. A second call for the same layer discards its payload and starts over.

        Args:
            number: index of the layer; 0 is the base.
            rank: rank of the layer by the size of its blob; 0 is the largest.
            entries: entries of the layer scanned so far.
            wanted: for each entry, whether the tree needs it; None if that is not known in advance.
        """

    def commit(self, tree: Tree, created: int = 0, /) -> SinkReport:
        """Make the output from the stored payload and publish it under its name.

        Args:
            tree: merged tree of the image.
            created: creation time of the image, in seconds since the epoch.

        Raises:
            OutputError: the output cannot be made; the caller must call `abort`.
            Aborted: `cancel` was called; the caller must call `abort`.
        """

    def cancel(self) -> None:
        """Make a `commit` in another thread end soon, unless it is already publishing."""

    def abort(self) -> None:
        """Remove the staging; the destination stays unchanged. May be called twice."""
