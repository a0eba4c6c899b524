"""Signs of life: a thread that touches the files of all locks that this process holds."""

from __future__ import annotations

import contextlib
import os
import threading

BEAT_SECONDS = 3.0
"""Between two signs of life."""


class Beats:
    """Files that are touched as long as this process lives, and is not stopped."""

    def __init__(self) -> None:
        self._fds: set[int] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, fd: int) -> None:
        """Touches a file from now on."""
        with self._changed:
            self._fds.add(fd)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fastpull-beats", daemon=True)
                self._thread.start()
            self._changed.notify()

    def remove(self, fd: int) -> None:
        """Touches it no more: it may be closed."""
        with self._changed:
            self._fds.discard(fd)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._fds:
                    self._changed.wait()
                else:
                    self._changed.wait_for(lambda: not self._fds, BEAT_SECONDS)
                    for fd in self._fds:
                        with contextlib.suppress(OSError):  # its holder is told when it looks
                            os.utime(fd)


BEATS = Beats()
"""Of this process."""
