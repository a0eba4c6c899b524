"""What was written is brought to its disk while more is coming, so that little is left to be waited for."""

from __future__ import annotations

import os
import threading

from fastpull.native import sync_filesystem
from fastpull.sinks.output.paths import DIRECTORY_FLAGS

PAUSE_SECONDS = 0.5


class Flusher:
    """Has a filesystem write back what it was given, again and again, on a thread of its own.

    With one sync at the end, a pull of 43,000 files onto a disk took 5 % longer than without any; so it takes none.

    Args:
        folder: descriptor of a directory on the filesystem.
    """

    def __init__(self, folder: int) -> None:
        # opened anew: an error of writing back is told to each opened file once, and who publishes has to hear of it
        self._fd = os.open(".", DIRECTORY_FLAGS, dir_fd=folder)
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="fastpull-flusher", daemon=True).start()

    def end(self) -> None:
        """Lets it end after what is under way, without waiting for that. May be called twice."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(PAUSE_SECONDS):
            sync_filesystem(self._fd)
        os.close(self._fd)
