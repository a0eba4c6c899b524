"""Signs of life: a thread touches the files of all locks that this process holds."""

from __future__ import annotations

import contextlib
import os
import threading

HEARTBEAT_SECONDS = 3.0
"""Time between two signs of life."""


class Heartbeat:
    """Files that are touched while this process runs.

    Each file is touched through its own descriptor, so a slow server delays no caller: `add` and `remove` only change a
    table, and a server that hangs blocks only the thread.
    """

    def __init__(self) -> None:
        self._copies: dict[int, int] = {}
        self._touched = -1
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, fd: int) -> None:
        """Start touching a file."""
        copy = os.dup(fd)
        with self._changed:
            self._copies[fd] = copy
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fastpull-heartbeat", daemon=True)
                self._thread.start()
            self._changed.notify()

    def remove(self, fd: int) -> None:
        """Stop touching a file; the caller may close it."""
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
        with contextlib.suppress(OSError):  # the owner notices in `FileLock.check`
            os.utime(copy)
        with self._changed:
            self._touched = -1
            is_removed = self._copies.get(fd) != copy
        if is_removed:
            os.close(copy)


HEARTBEAT = Heartbeat()
"""The heartbeat of this process."""
