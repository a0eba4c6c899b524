"""Deterministic generated layers, cached for each process, about as compressible as programs."""

from __future__ import annotations

import gzip
from functools import cache

import zstandard

from fastpull.layers.archive import archive
from fastpull.layers.entry import Entry, EntryType
from fastpull.pipeline.layer import CHUNK
from tests.support.images.content import text

_TIME = 1_700_000_000
_FILES_PER_FOLDER = 32

SMALL_FILES = (8_192, 4 << 10)
BIG_FILES = (2, 16 << 20)
"""Number of files, and the size of each in bytes."""


@cache
def tar_of(count: int, size: int) -> bytes:
    """Return a tar of regular files and their directories.

    Args:
        count: number of files.
        size: size of each file in bytes.
    """
    content = text(count * size)
    members = []
    for number in range(count):
        folder, place = divmod(number, _FILES_PER_FOLDER)
        path = b"usr/lib/package-%05d" % folder
        if not place:
            members.append((Entry(path, EntryType.DIRECTORY, 0o755, mtime=_TIME), b""))
        entry = Entry(path + b"/module_%02d.py" % place, EntryType.FILE, 0o644, mtime=_TIME, size=size)
        members.append((entry, content[number * size : (number + 1) * size]))
    return archive(members)


@cache
def gzip_of(count: int, size: int) -> bytes:
    """Return the layer in gzip, as image builders store it by default."""
    return gzip.compress(tar_of(count, size), 6, mtime=0)


@cache
def zstd_of(count: int, size: int) -> bytes:
    """Return the layer in zstd."""
    return zstandard.ZstdCompressor(level=3).compress(tar_of(count, size))


def chunks_of(layer: bytes) -> list[memoryview]:
    """Cut a layer into the chunks of a pull."""
    view = memoryview(layer)
    return [view[start : start + CHUNK] for start in range(0, len(view), CHUNK)]
