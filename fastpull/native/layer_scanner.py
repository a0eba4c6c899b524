"""Scanning a layer: turns the scanner's codes into errors with layer, entry and offset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull.config.limits import DEFAULT_LIMITS, Limits
from fastpull.errors import LayerError, LimitExceeded, TarError
from fastpull.layers.faults import LAYER_FAULTS, LIMITS, REASONS, Fault
from fastpull.layers.index import Columns, LayerIndex
from fastpull.native import Scanner

if TYPE_CHECKING:
    from fastpull.native import EntryTable, Spans
    from fastpull.oci.digest import Digest


class LayerScanner:
    """Scans the uncompressed bytes of a layer into its index.

    Args:
        subject: name of the layer in messages.
        limits: limits of the layer.

    Spec: image-spec layer.md; POSIX.1-2017 pax.
    """

    def __init__(self, subject: str, limits: Limits = DEFAULT_LIMITS) -> None:
        self._subject = subject
        self._scanner = Scanner(limits.max_layer_size)

    @property
    def entries(self) -> EntryTable:
        """Entries so far; the table grows with each `feed`."""
        return self._scanner.entries

    @property
    def content(self) -> int:
        """Bytes of all files so far, including holes."""
        return self._scanner.content

    def feed(self, chunk: bytes | bytearray | memoryview) -> Spans:
        """Scan the next bytes of the layer; chunks may have any size.

        Returns:
            The payload of files in ``chunk``; valid until the next call.

        Raises:
            TarError: the archive is malformed or ambiguous.
            LayerError: a path leaves the root or cannot exist.
            LimitExceeded: an entry exceeds a limit.
        """
        self._check(self._scanner.feed(chunk))
        return self._scanner.spans

    def finish(self) -> None:
        """End the layer.

        Raises:
            TarError: the archive is truncated.
        """
        self._check(self._scanner.finish())

    def index(self, blob: Digest, diff_id: Digest, size: int) -> LayerIndex:
        """Return the index of the layer."""
        return LayerIndex(blob, diff_id, size, Columns(*self._scanner.entries.columns()))

    def _check(self, code: int) -> None:
        if code == Fault.NONE:
            return
        if code == Fault.MEMORY:
            raise MemoryError
        fault, entries, culprit = Fault(code), self._scanner.entries, self._scanner.culprit
        if fault in LAYER_FAULTS:
            raise LayerError(self._subject, REASONS[fault], culprit)
        after = entries.path(len(entries) - 1) if len(entries) else b""
        if fault in LIMITS:
            raise LimitExceeded(self._subject, REASONS[fault], culprit or after, LIMITS[fault])
        raise TarError(self._subject, REASONS[fault], self._scanner.offset, after=after, culprit=culprit)
