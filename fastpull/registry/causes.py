"""Which failures have the same cause: when a network goes, every connection fails."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpull.errors import FastpullError

REPEATED_SECONDS = 30.0
"""A failure counts as repeated for so long after the last one of its cause."""

_NUMBER = re.compile(r"[0-9]+")
_MAX_CAUSES = 1000


class Causes:
    """The causes of failures of late."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], float] = {}

    def is_repeated(self, host: str, error: FastpullError) -> bool:
        """Note a failure; return whether one of that cause was noted a moment ago.

        Args:
            host: that was asked.
            error: the failure; numbers in it, such as those of bytes, make no other cause.
        """
        cause, now = (host, _NUMBER.sub("", str(error))), time.monotonic()
        last = self._last.get(cause)
        if len(self._last) >= _MAX_CAUSES:
            self._last.clear()
        self._last[cause] = now
        return last is not None and now - last < REPEATED_SECONDS
