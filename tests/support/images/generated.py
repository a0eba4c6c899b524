"""Generated images: extremes that no distribution offers, the same bytes every time, made without root.

They are what a tar of such files is: directories and files with headers, names, sizes and content of a real tree's
kind. Content is cut from a pool at places of chance, farther apart than a compressor of layers looks back.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

from fastpull.layers.entry import Entry, EntryType
from tests.support.images.content import text

_GENERATION = "1"  # changes with what is generated
_TIME = 1_700_000_000
_POOL = 16 << 20
_PIECE = 1 << 20
_FILES_PER_FOLDER = 40
_FOLDERS_PER_PACKAGE = 12
_KINDS = (b"py", b"h", b"json", b"so", b"txt", b"js")


@dataclass(frozen=True, slots=True)
class Shape:
    """An image by its numbers.

    Attributes:
        name: on the command line.
        layers: how many.
        files: in all layers together.
        file_size: their mean size in bytes; they vary from nothing to twice that.
        replaced: one of so many files of a layer replaces one of the layer below it; 0 for none.
    """

    name: str
    layers: int
    files: int
    file_size: int
    replaced: int = 0

    @property
    def version(self) -> str:
        """Changes whenever the bytes do."""
        numbers = (_GENERATION, self.layers, self.files, self.file_size, self.replaced)
        return hashlib.sha256("\0".join(map(str, numbers)).encode()).hexdigest()[:12]

    def members(self, layer: int) -> Iterator[tuple[Entry, Iterator[bytes]]]:
        """The entries of a layer, each with its payload in pieces.

        Args:
            layer: its number, 0 for the base.
        """
        chance = random.Random(layer)
        first, last = (number * self.files // self.layers for number in (layer, layer + 1))
        folders: set[bytes] = set()
        for number in range(first, last):
            shift = (
                self.files // self.layers if layer and self.replaced and (number + layer) % self.replaced == 0 else 0
            )
            folder, name = _place(number - shift)
            for parent in _with_parents(folder):
                if parent not in folders:
                    folders.add(parent)
                    yield Entry(parent, EntryType.DIRECTORY, 0o755, mtime=_TIME), iter(())
            size = chance.randrange(2 * self.file_size + 1)
            mode = 0o755 if name.endswith(b".so") else 0o644
            yield Entry(folder + b"/" + name, EntryType.FILE, mode, mtime=_TIME + number, size=size), _cut(chance, size)


SHAPES = (
    Shape("many-layers", layers=64, files=16_000, file_size=24 << 10, replaced=10),
    Shape("small-files", layers=3, files=160_000, file_size=2500),
    Shape("fat", layers=1, files=400, file_size=4 << 20),
)
"""Many layers; many entries; one layer, so that nothing can be done side by side."""


def _place(number: int) -> tuple[bytes, bytes]:
    """The folder of a file, and its name there."""
    folder, place = divmod(number, _FILES_PER_FOLDER)
    package, part = divmod(folder, _FOLDERS_PER_PACKAGE)
    kind = _KINDS[(number * 7 + folder) % len(_KINDS)]
    return b"opt/lib/package-%04d/part_%02d" % (package, part), b"module_%02d_%06d.%b" % (place, number, kind)


def _with_parents(folder: bytes) -> list[bytes]:
    """A folder, after those that it is in."""
    names = folder.split(b"/")
    return [b"/".join(names[: end + 1]) for end in range(len(names))]


def _cut(chance: random.Random, size: int) -> Iterator[bytes]:
    pool = text(_POOL)
    while size > 0:
        piece = min(size, _PIECE)
        start = chance.randrange(_POOL - piece)
        yield pool[start : start + piece]
        size -= piece
