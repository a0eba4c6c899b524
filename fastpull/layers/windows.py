"""Memory for what inflaters keep of a layer: windows of zstd frames, which an image's author chooses."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fastpull.concurrency.threads import Aborted

INCLUDED = 1 << 20
"""A window up to so many bytes is among the buffers that every layer has anyway."""


class WindowMemory:
    """Shares memory among the windows of layers that are inflated side by side, on threads.

    A window that finds no room waits for those of other layers to end. It must not wait while it keeps others waiting:
    one that grows, and one that would not fit if it were alone, goes beyond the total at once, one layer at a time.
    So there is always one that goes on, and no more is taken than the total and the largest window that there may be.

    Args:
        total: bytes for all windows.
        on_change: told how many bytes are taken, on the thread that takes or returns them.
    """

    def __init__(self, total: int, on_change: Callable[[int], object]) -> None:
        self._total = total
        self._on_change = on_change
        self._taken = 0
        self._beyond: InflaterWindow | None = None
        self._changed = threading.Condition()

    def take(self, window: InflaterWindow, size: int) -> None:
        """Gives a layer as many bytes in all; blocks until it may have them."""
        with self._changed:
            while not (window.is_aborted or self._grant(window, size)):
                self._changed.wait()
            if window.is_aborted:
                raise Aborted
            self._resize(window, size)

    def release(self, window: InflaterWindow) -> None:
        """Takes back what a layer has."""
        with self._changed:
            if self._beyond is window:
                self._beyond = None
            self._resize(window, 0)
            self._changed.notify_all()

    def abort(self, window: InflaterWindow) -> None:
        """Ends the waiting of a layer."""
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
    """The window of one layer: of its frames the largest so far.

    Args:
        windows: that it is one of.

    Attributes:
        size: bytes that were taken for it.
        is_aborted: whether it is not to wait any more.
    """

    def __init__(self, windows: WindowMemory) -> None:
        self._windows = windows
        self.size = 0
        self.is_aborted = False

    def grow(self, size: int) -> None:
        """Sees to memory for a frame; blocks until there is some.

        Args:
            size: of the frame's window, in bytes.

        Raises:
            Aborted: by `abort`.
        """
        if size > max(self.size, INCLUDED):
            self._windows.take(self, size)

    def abort(self) -> None:
        """Ends a `grow` that waits on another thread, and all later ones."""
        self._windows.abort(self)

    def release(self) -> None:
        """Gives the memory back. May be called twice."""
        self._windows.release(self)
