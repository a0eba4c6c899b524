"""Signs of life: a thread that touches the files of all locks that this process holds."""

from __future__ import annotations

import contextlib
import os
import threading

HEARTBEAT_SECONDS = 3.0
"""Between two signs of life."""


class Heartbeat:
    """Files that are touched as long as this process lives, and is not stopped.

    A file is touched through a descriptor of its own, so that no caller waits for a slow server: `add` and `remove`
    change a table, and a file whose server hangs keeps nothing but the thread.
    """

    def __init__(self) -> None:
        self._copies: dict[int, int] = {}
        self._touched = -1
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, fd: int) -> None:
        """Touches a file from now on."""
        copy = os.dup(fd)
        with self._changed:
            self._copies[fd] = copy
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fastpull-beats", daemon=True)
                self._thread.start()
            self._changed.notify()

    def remove(self, fd: int) -> None:
        """Touches it no more: it may be closed."""
        with self._changed:
            copy = self._copies.pop(fd, -1)
            if copy == self._touched:
                return  # the thread closes it
        if copy >= 0:
            os.close(copy)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._copies:
                    self._changed.wait()
                    continue
                self._changed.wait_for(lambda: not self._copies, HEARTBEAT_SECONDS)
                pending = list(self._copies)
            for fd in pending:
                self._touch(fd)

    def _touch(self, fd: int) -> None:
        with self._changed:
            copy = self._touched = self._copies.get(fd, -1)
        if copy < 0:
            return
        with contextlib.suppress(OSError):  # its holder is told when it looks
            os.utime(copy)
        with self._changed:
            self._touched = -1
            is_removed = self._copies.get(fd) != copy
        if is_removed:
            os.close(copy)


HEARTBEAT = Heartbeat()
"""Of this process."""
