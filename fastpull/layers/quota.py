"""What the layers of an image take together, and where that becomes too much."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fastpull.errors import LimitExceeded

if TYPE_CHECKING:
    from fastpull.config.limits import Limits
    from fastpull.layers.index import LayerIndex
    from fastpull.native import EntryTable

_FREELY = 1 << 30  # bytes that a layer may have before its ratio counts
_ALWAYS_FREELY = 16 << 20  # however full the disk is


class Quota:
    """Counts what layers take, on as many threads as they like.

    Args:
        limits: of the image.
        room: bytes that are free where the output is made.
    """

    def __init__(self, limits: Limits, room: int) -> None:
        self.limits = limits
        self.freely = min(_FREELY, max(_ALWAYS_FREELY, room // 10))
        self._lock = threading.Lock()
        self._taken: dict[int, tuple[int, int]] = {}
        self._size = self._entries = 0

    def take(self, layer: int, size: int, entries: int) -> tuple[int, int]:
        """Notes what a layer takes now, bytes and entries, and returns what all of them take."""
        with self._lock:
            size_before, entries_before = self._taken.get(layer, (0, 0))
            self._taken[layer] = size, entries
            self._size += size - size_before
            self._entries += entries - entries_before
            return self._size, self._entries


class LayerQuota:
    """Counts what one layer takes; with the image's other layers, too. One that is read again counts once.

    Args:
        quota: of the image.
        layer: its number.
        subject: the layer, for messages.
    """

    def __init__(self, quota: Quota, layer: int, subject: str) -> None:
        self._quota = quota
        self._layer = layer
        self._subject = subject

    def check(self, read: int, unpacked: int, content: int, entries: EntryTable | LayerIndex) -> None:
        """Says how far the layer has come.

        Args:
            read: bytes of the blob.
            unpacked: bytes of the tar.
            content: bytes of the files, with their holes.
            entries: so far.

        Raises:
            LimitExceeded: it is too much.
        """
        limits, size = self._quota.limits, max(unpacked, content)
        if size > limits.max_layer_size:
            raise self._fail("larger, uncompressed, than a layer may be", "max_layer_size", entries)
        if unpacked > self._quota.freely and unpacked > limits.max_ratio * read:
            raise self._fail(
                "more uncompressed bytes for each byte of the blob than there may be", "max_ratio", entries
            )
        image_size, image_entries = self._quota.take(self._layer, size, len(entries))
        if image_size > limits.max_image_size:
            raise self._fail("larger, uncompressed, than all layers together may be", "max_image_size", entries)
        if image_entries > limits.max_entries:
            raise self._fail("more entries than all layers together may have", "max_entries", entries)

    def _fail(self, limit: str, setting: str, entries: EntryTable | LayerIndex) -> LimitExceeded:
        last_path = entries.path(len(entries) - 1) if len(entries) else b""
        allowed = getattr(self._quota.limits, setting)
        return LimitExceeded(self._subject, f"{limit} ({allowed})", last_path, setting)
