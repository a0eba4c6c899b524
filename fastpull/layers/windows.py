"""Memory for windows of zstd frames, whose size the author of an image chooses."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fastpull.concurrency.threads import Aborted

INCLUDED = 1 << 20
"""Bytes of a window that are part of the buffers that every layer has."""


class WindowMemory:
    """Memory that the windows of concurrently inflated layers share.

    A window that does not fit waits until other layers release theirs. To avoid deadlock, a window that grows, or that
    exceeds the total alone, may go beyond the total at once, one layer at a time. Therefore one layer can always
    continue, and usage never exceeds the total and one window of maximum size.

    Args:
        total: bytes for all windows.
        on_change: called with the bytes in use after each change, on the thread of the change.
    """

    def __init__(self, total: int, on_change: Callable[[int], object]) -> None:
        self._total = total
        self._on_change = on_change
        self._taken = 0
        self._beyond: InflaterWindow | None = None
        self._changed = threading.Condition()

    @property
    def total(self) -> int:
        """Bytes for all windows."""
        return self._total

    def take(self, window: InflaterWindow, size: int) -> None:
        """Reserve `size` bytes in all for a window; block until they are available."""
        with self._changed:
            while not (window.is_aborted or self._grant(window, size)):
                self._changed.wait()
            if window.is_aborted:
                raise Aborted
            self._resize(window, size)

    def release(self, window: InflaterWindow) -> None:
        """Release the bytes of a window."""
        with self._changed:
            if self._beyond is window:
                self._beyond = None
            self._resize(window, 0)
            self._changed.notify_all()

    def abort(self, window: InflaterWindow) -> None:
        """End the waiting of a window."""
        with self._changed:
            window.is_aborted = True
            self._changed.notify_all()

    def _grant(self, window: InflaterWindow, size: int) -> bool:
        if self._beyond is window or self._taken - window.size + size <= self._total:
            return True
        if self._beyond is None and (window.size or size > self._total):
            self._beyond = window
            return True
        return False

    def _resize(self, window: InflaterWindow, size: int) -> None:
        if size != window.size:
            self._taken += size - window.size
            window.size = size
            self._on_change(self._taken)


class InflaterWindow:
    """The window of one layer: the largest window of its frames so far.

    Args:
        windows: memory that it shares.

    Attributes:
        size: reserved bytes.
        is_aborted: whether `abort` was called.
    """

    def __init__(self, windows: WindowMemory) -> None:
        self._windows = windows
        self.size = 0
        self.is_aborted = False

    def grow(self, size: int) -> None:
        """Reserve memory for a frame; block until it is available.

        Args:
            size: size of the frame's window, in bytes.

        Raises:
            Aborted: `abort` was called.
        """
        if size > max(self.size, INCLUDED):
            self._windows.take(self, size)

    def abort(self) -> None:
        """Make a waiting `grow` on another thread, and all later calls, raise Aborted."""
        self._windows.abort(self)

    def release(self) -> None:
        """Release the memory. May be called twice."""
        self._windows.release(self)
