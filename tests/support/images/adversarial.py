"""Images that make careless code superlinear: deep paths, whiteouts, links, and repeated directories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fastpull.layers.entry import Entry, EntryType

ADVERSARIAL = ("deep", "whiteouts", "opaque", "links", "repeated")
_DEPTH = 120  # names in a path; 255 are allowed
_PER_FOLDER = 1000


@dataclass(frozen=True, slots=True)
class AdversarialImage:
    """An image of two layers with a given number of entries.

    Attributes:
        name: one of `ADVERSARIAL`.
        entries: approximate number of entries in both layers.
    """

    name: str
    entries: int
    layers: int = 2

    def members(self, layer: int) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        """Yield the entries of a layer, all without payload."""
        for number in range(self.entries // 2):
            yield self._entry(layer, number), iter(())

    def _entry(self, layer: int, number: int) -> Entry:
        folder, name = b"d%04d" % (number // _PER_FOLDER), b"%06d" % number
        match self.name, layer:
            case "deep", _:
                return Entry(b"%03d/" % (number % 997) + b"d/" * _DEPTH + name, EntryType.FILE)
            case "whiteouts", 1:
                return Entry(folder + b"/.wh." + name, EntryType.FILE)
            case "opaque", 0:
                return Entry(name + b"/f", EntryType.FILE)
            case "opaque", 1:
                return Entry(name + b"/.wh..wh..opq", EntryType.FILE)
            case "links", 0:
                return Entry(folder + b"/" + name, EntryType.FILE)
            case "links", 1:  # many names for one lower file, each linked to the name before it
                before = (
                    b"d%04d/%06d" % (number // _PER_FOLDER, number) if number % 100 == 0 else b"l/%06d" % (number - 1)
                )
                return Entry(b"l/" + name, EntryType.HARDLINK, linkname=before)
            case "repeated", _:
                return Entry(b"d%02d" % (number % 100), EntryType.DIRECTORY, 0o755, mtime=number)
            case _:
                return Entry(folder + b"/" + name, EntryType.FILE)
