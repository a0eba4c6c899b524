"""Short constructors of entries, layers and images."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import zstandard

from fastpull.demo.registry import LoopbackRegistry
from fastpull.layers.archive import archive
from fastpull.layers.entry import Entry, EntryType
from fastpull.layers.index import LayerIndex

Member = tuple[Entry, bytes]


def file(path: str | bytes, content: bytes = b"", **attributes: Any) -> Member:
    return Entry(_bytes(path), EntryType.FILE, size=len(content), **attributes), content


def folder(path: str | bytes, mode: int = 0o755, **attributes: Any) -> Member:
    return Entry(_bytes(path), EntryType.DIRECTORY, mode, **attributes), b""


def symlink(path: str | bytes, target: str | bytes, **attributes: Any) -> Member:
    return Entry(_bytes(path), EntryType.SYMLINK, 0o777, linkname=_bytes(target), **attributes), b""


def hardlink(path: str | bytes, target: str | bytes, **attributes: Any) -> Member:
    return Entry(_bytes(path), EntryType.HARDLINK, linkname=_bytes(target), **attributes), b""


def device(path: str | bytes, major: int, minor: int, **attributes: Any) -> Member:
    return Entry(_bytes(path), EntryType.CHAR, device=(major, minor), **attributes), b""


def fifo(path: str | bytes, **attributes: Any) -> Member:
    return Entry(_bytes(path), EntryType.FIFO, **attributes), b""


def whiteout(path: str) -> Member:
    parent, _, name = path.rpartition("/")
    return file(f"{parent}/.wh.{name}" if parent else f".wh.{name}")


def opaque(path: str) -> Member:
    return file(f"{path}/.wh..wh..opq" if path else ".wh..wh..opq")


def index(*members: Member) -> LayerIndex:
    """Return the index of a layer with these members, without a tar."""
    return LayerIndex.of(entry for entry, _ in members)


@dataclass
class StoredLayer:
    """A layer as stored in a registry."""

    blob: bytes
    diff_id: str


def stored(members: Iterable[Member] | bytes, compress: Any = None) -> StoredLayer:
    """Return a layer of members or of the bytes of a tar, compressed with gzip by default."""
    tar = members if isinstance(members, bytes) else archive(members)
    blob = gzip.compress(tar, 1, mtime=0) if compress is None else compress(tar)
    return StoredLayer(blob, "sha256:" + hashlib.sha256(tar).hexdigest())


def with_window(log: int) -> Callable[[bytes], bytes]:
    """Return a compression function for one zstd frame with a window of 2^log bytes."""

    def compress(tar: bytes) -> bytes:
        parameters = zstandard.ZstdCompressionParameters(window_log=log, enable_ldm=False)
        compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        return compressor.compress(tar) + compressor.flush()

    return compress


def publish(
    registry: LoopbackRegistry,
    *layers: Sequence[Member] | StoredLayer,
    name: str = "test/image",
    tag: str = "v1",
    **config: Any,
) -> str:
    """Add an image to a registry, and return its reference."""
    made = [layer if isinstance(layer, StoredLayer) else stored(layer) for layer in layers]
    registry.add_image(name, tag, [layer.blob for layer in made], [layer.diff_id for layer in made], **config)
    return f"{registry.address}/{name}:{tag}"


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
