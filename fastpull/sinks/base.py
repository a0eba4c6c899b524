"""What every sink can do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from fastpull.layers.tree import Tree
    from fastpull.tarstage import EntryTable, Spans


@dataclass(slots=True)
class SinkReport:
    """What a sink made.

    Attributes:
        path: of the output.
        inodes: files, directories and the rest; names of one inode count once.
        left_out: what the output does not have, by kind: ``devices``, ``xattrs``, ``setuid bits``.
    """

    path: str
    inodes: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


class LayerWriter(Protocol):
    """Takes the payload of one layer while it streams."""

    def write(self, chunk: bytes, spans: Spans) -> None:
        """Stores the payload that ``spans`` find in ``chunk``; neither is kept.

        Raises:
            OutputError: it cannot be stored.
        """

    def close(self) -> None:
        """Says that the layer has ended, or will not go on. May be called twice."""


class Sink(Protocol):
    """Makes one output. Methods block; `layer` and what it returns are used on several threads at once.

    The order of calls is `begin`, then `layer` for each layer in any order, then `commit`; or, at any time, `abort`.
    """

    def begin(self, sync: bool) -> None:
        """Prepares the staging beside the destination.

        Args:
            sync: the output has to be on its disk before it appears.

        Raises:
            OutputExists, OutputError: it is clear already that the destination cannot be made.
        """

    def layer(self, number: int, entries: EntryTable, wanted: bytearray | None) -> LayerWriter:
        """Begins a layer; once more for a layer that has to be read again, whose payload so far is forgotten.

        Args:
            number: of the layer, 0 for the base.
            entries: of the layer, as far as they are scanned.
            wanted: for each entry whether the tree will need it, where that is known before.
        """

    def commit(self, tree: Tree) -> SinkReport:
        """Makes the output of the payloads, and publishes it under its name.

        Raises:
            OutputError: it cannot be made; `abort` is still to be called.
        """

    def abort(self) -> None:
        """Removes what is staged; the destination is as it was. May be called twice."""
