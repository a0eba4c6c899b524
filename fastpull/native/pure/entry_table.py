"""The table of a layer's entries, and the spans of a chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull.layers.index import LayerIndex

if TYPE_CHECKING:
    from fastpull.layers.entry import Entry

PayloadSpan = tuple[int, int, int, int, int]
Spans = list[PayloadSpan]


class EntryTable:
    """The entries so far."""

    def __init__(self) -> None:
        self.rows: list[Entry] = []

    def __len__(self) -> int:
        return len(self.rows)

    def path(self, number: int) -> bytes:
        """The path of one entry."""
        return self.rows[number].path

    def columns(self) -> tuple[bytes, ...]:
        """The table as bytes, in the order of the fields of `fastpull.layers.index.Columns`."""
        return tuple(LayerIndex.of(self.rows).columns)
