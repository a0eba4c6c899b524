"""Lines at the bottom of a terminal that are drawn anew several times a second, below everything that is printed."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

_DRAW_SECONDS = 0.1
_DUMB = ("", "dumb", "unknown")


def is_live(stream: TextIO) -> bool:
    """Return whether a stream is a terminal on which the cursor can be moved."""
    return stream.isatty() and os.environ.get("TERM", "") not in _DUMB


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return columns and lines of a terminal: its own, or those of ``COLUMNS`` and ``LINES``, or 80 and 24."""
    columns = lines = 0
    with contextlib.suppress(OSError, ValueError):
        columns, lines = os.get_terminal_size(stream.fileno())
    return columns or _number("COLUMNS", 80), lines or _number("LINES", 24)


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and 0 < int(text) < 10_000 else default


class Display:
    """Draws lines until it is closed. While it is open, what is written to ``sys.stderr`` goes above them.

    The cursor stays visible and stands below the lines, so that a ``^C`` that the terminal shows leaves them whole.

    Args:
        stream: of the terminal.
        render: makes the lines for so many columns and lines; called by a thread.
    """

    def __init__(self, stream: TextIO, render: Callable[[int, int], list[str]]) -> None:
        self._stream = stream
        self._render = render
        self._drawn = 0
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._is_broken = self._is_paused = False
        self._thread = threading.Thread(target=self._run, name="fastpull-display", daemon=True)
        self._above = _Above(self)

    def open(self) -> None:
        """Begin to draw."""
        self._stderr, sys.stderr = sys.stderr, self._above
        self._thread.start()

    def close(self) -> None:
        """Remove the lines, and draw no more."""
        self._closing.set()
        self._above.flush_rest()
        if sys.stderr is self._above:
            sys.stderr = self._stderr
        self._thread.join()
        with self._lock:
            self._write(self._erased())

    def print(self, text: str) -> None:
        """Write whole lines above the display."""
        with self._lock:
            self._write(self._erased() + text)
            if not (self._closing.is_set() or self._is_paused):
                self._draw()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Give the terminal to other streams for a moment."""
        with self._lock:
            self._write(self._erased())
            self._is_paused = True
            try:
                yield
            finally:
                self._is_paused = False

    def _run(self) -> None:
        while not self._closing.wait(_DRAW_SECONDS):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        columns, height = terminal_size(self._stream)
        # a line in the last column would wrap on some terminals, and the cursor needs a line of its own
        lines = self._render(max(1, columns - 1), height - 1)
        start = f"\r\x1b[{self._drawn}A" if self._drawn else "\r"
        self._drawn = len(lines)
        self._write(start + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")

    def _erased(self) -> str:
        """Return what removes the lines that are drawn."""
        count, self._drawn = self._drawn, 0
        return f"\r\x1b[{count}A\x1b[J" if count else ""

    def _write(self, text: str) -> None:
        if self._is_broken or not text:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # the terminal is gone, and with it the place for a message
            self._is_broken = True


class _Above(io.TextIOBase):
    """A text stream whose lines go above a display."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._rest = ""

    def write(self, text: str) -> int:
        whole, newline, self._rest = (self._rest + text).rpartition("\n")
        if newline:
            self._display.print(whole + newline)
        return len(text)

    def flush_rest(self) -> None:
        """Write what has no end of line yet."""
        if self._rest:
            self.write("\n")

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._display._stream.fileno()  # noqa: SLF001  # its own class

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._display._stream.encoding  # noqa: SLF001
