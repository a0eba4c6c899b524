"""Programs on a pseudoterminal, and their screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Sequence

_TOKEN = re.compile(r"\x1b\[(\d*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)|(.)", re.DOTALL)


class Screen:
    """A terminal emulator for wrapped text, line ends, ``CSI A``, ``CSI J`` and ``CSI K``; all else is an error.

    Attributes:
        lines: all lines since the start.
    """

    def __init__(self, columns: int) -> None:
        self.lines = [""]
        self._columns = columns
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        """Process the output of a program."""
        for number, command, is_return, is_newline, piece, other in _TOKEN.findall(text):
            if is_return:
                self._column = 0
            elif is_newline:
                self._row += 1
                if self._row == len(self.lines):
                    self.lines.append("")
            elif piece:
                for c in piece:
                    if self._column == self._columns:
                        self.feed("\r\n")
                    line = self.lines[self._row].ljust(self._column)
                    self.lines[self._row] = line[: self._column] + c + line[self._column + 1 :]
                    self._column += 1
            elif command == "A":
                self._row -= int(number or 1)
                assert self._row >= 0, "the cursor leaves the screen"
            elif command in ("J", "K"):
                self.lines[self._row] = self.lines[self._row][: self._column]
                if command == "J":
                    del self.lines[self._row + 1 :]
            else:
                raise AssertionError(f"unexpected control sequence: {command or other!r}")

    @property
    def text(self) -> str:
        """Return all lines."""
        return "\n".join(line.rstrip() for line in self.lines).rstrip("\n")


class Terminal:
    """A program on its own terminal.

    Args:
        command: program with its arguments.
        columns, rows: size of the terminal.
        environment: variables added to those of this process.
    """

    def __init__(self, command: Sequence[str], columns: int = 80, rows: int = 24, **environment: str) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        self.shown = ""
        self.columns = columns
        self.pid, self._fd = pty.fork()
        if self.pid == 0:  # pragma: no cover
            fcntl.ioctl(0, termios.TIOCSWINSZ, size)
            os.execvpe(command[0], list(command), {**os.environ, "TERM": "xterm", **environment})
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, size)

    def read(self, until: str = "", seconds: float = 60) -> bool:
        """Read until a text is shown; return False if the program ends before."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if until and until in self.shown:
                return True
            if not select.select([self._fd], [], [], 0.1)[0]:
                continue
            try:
                piece = os.read(self._fd, 65536)
            except OSError:  # on Linux, the other end is closed
                piece = b""
            if not piece:
                return False
            self.shown += piece.decode(errors="replace")
        raise TimeoutError(self.shown)

    def type(self, text: str) -> None:
        """Send input to the program."""
        os.write(self._fd, text.encode())

    def wait(self) -> int:
        """Read to the end, and return the exit code."""
        self.read()
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def screen(self) -> Screen:
        """Return the final screen."""
        screen = Screen(self.columns)
        screen.feed(self.shown)
        return screen
