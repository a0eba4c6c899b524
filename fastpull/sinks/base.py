"""What every sink can do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from fastpull.telemetry.timing import PullTimer

if TYPE_CHECKING:
    from fastpull.layers.tree import Tree
    from fastpull.native import EntryTable, Spans
    from fastpull.sinks.output.marker import Marker, OutputIdentity


@dataclass(frozen=True, slots=True)
class Resources:
    """What a sink has to work with.

    Attributes:
        workers: threads that may compute at once.
        layers: how many layers may be written side by side, at most.
        memory: bytes for buffers, of all layers together.
        sync: the output has to be on its disk before it appears.
        keep_out: directories that the output neither replaces nor contains nor is put into: the cache.
        meter: counts where the time goes.
    """

    workers: int = 1
    layers: int = 1
    memory: int = 64 << 20
    sync: bool = False
    keep_out: tuple[str, ...] = ()
    meter: PullTimer = field(default_factory=PullTimer)


@dataclass(slots=True)
class SinkReport:
    """What a sink made.

    Attributes:
        path: of the output.
        inodes: files, directories and the rest; names of one inode count once.
        left_out: what the output does not have, by kind: ``devices``, ``xattrs``, ``setuid bits``.
        warnings: what else is to be said, a sentence each.
    """

    path: str
    inodes: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)


class LayerWriter(Protocol):
    """Takes the payload of one layer while it streams."""

    def write(self, chunk: bytes, spans: Spans) -> None:
        """Stores the payload that ``spans`` find in ``chunk``; neither is kept.

        Raises:
            OutputError: it cannot be stored.
        """

    def finish(self) -> None:
        """Says that the layer has ended: what is held back is stored.

        Raises:
            OutputError: it cannot be stored.
        """

    def close(self) -> None:
        """Says that there will be no more, be the layer complete or not. May be called twice."""


class Sink(Protocol):
    """Makes one output. Methods block; `layer` and what it returns are used on several threads at once.

    The order of calls is `begin`, then `layer` for each layer in any order, then `commit`; or, at any time, `abort`.
    After that it may begin again.
    """

    def begin(self, resources: Resources) -> None:
        """Prepares the staging beside the destination.

        Args:
            resources: to work with.

        Raises:
            OutputExists, OutputError: it is clear already that the destination cannot be made.
        """

    def room(self) -> int:
        """Bytes that are free where the output is made; to be asked after `begin`."""

    def layer(self, number: int, rank: int, entries: EntryTable, wanted: bytearray | None, /) -> LayerWriter:
        """Begins a layer; once more for a layer that has to be read again, whose payload so far is forgotten.

        Args:
            number: of the layer, 0 for the base.
            rank: of the layer by the size of its blob, 0 for the largest.
            entries: of the layer, as far as they are scanned.
            wanted: for each entry whether the tree will need it, where that is known before.
        """

    def commit(self, tree: Tree, created: int = 0, /) -> SinkReport:
        """Makes the output of the payloads, and publishes it under its name.

        Args:
            tree: what the output has to be.
            created: when the image was made, in seconds since the epoch.

        Raises:
            OutputError: it cannot be made; `abort` is still to be called.
            Aborted: because of `cancel`; likewise.
        """

    def cancel(self) -> None:
        """Makes a `commit` on another thread end soon, unless it is publishing already."""

    def abort(self) -> None:
        """Removes what is staged; the destination is as it was. May be called twice."""


@runtime_checkable
class MarkedSink(Sink, Protocol):
    """A sink whose output says what it is, so that it need not be made again."""

    path: str

    def recipe_facts(self) -> dict[str, Any]:
        """All that decides on the output beside image and runtimes, as JSON has it."""

    def read_marker(self) -> Marker | None:
        """The marker of what is at the destination; None if there is none to go by, or it is to be replaced.

        To be asked before `begin`.
        """

    def set_identity(self, identity: OutputIdentity, /) -> None:
        """Takes what the output will be, for its marker; without it there is none. To be called before `commit`."""
