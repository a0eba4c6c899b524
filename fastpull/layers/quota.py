"""The total size of the layers of an image, and its limits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fastpull.errors import LimitExceeded

if TYPE_CHECKING:
    from fastpull.config.limits import Limits
    from fastpull.layers.index import LayerIndex
    from fastpull.native import EntryTable

_FREELY = 1 << 30  # uncompressed bytes of a layer below which its ratio is not checked
_ALWAYS_FREELY = 16 << 20  # the same on a disk that is almost full


class Quota:
    """Counts sizes and entries of all layers of an image; threads may share it.

    Args:
        limits: limits of the image.
        room: free bytes on the filesystem of the output.
    """

    def __init__(self, limits: Limits, room: int) -> None:
        self.limits = limits
        self.freely = min(_FREELY, max(_ALWAYS_FREELY, room // 10))
        self._lock = threading.Lock()
        self._taken: dict[int, tuple[int, int]] = {}
        self._size = self._entries = 0

    def take(self, layer: int, size: int, entries: int) -> tuple[int, int]:
        """Set the bytes and entries of a layer; return the totals of all layers."""
        with self._lock:
            size_before, entries_before = self._taken.get(layer, (0, 0))
            self._taken[layer] = size, entries
            self._size += size - size_before
            self._entries += entries - entries_before
            return self._size, self._entries


class LayerQuota:
    """Checks one layer against the limits, alone and together with the other layers. A repeated layer counts once.

    Args:
        quota: quota of the image.
        layer: number of the layer.
        subject: name of the layer in messages.
    """

    def __init__(self, quota: Quota, layer: int, subject: str) -> None:
        self._quota = quota
        self._layer = layer
        self._subject = subject

    def check(self, read: int, unpacked: int, content: int, entries: EntryTable | LayerIndex) -> None:
        """Check the progress of the layer.

        Args:
            read: bytes of the blob so far.
            unpacked: bytes of the tar so far.
            content: bytes of files so far, including holes.
            entries: entries so far.

        Raises:
            LimitExceeded: a limit is exceeded.
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
