"""Which failures have the same cause: when a network goes, every connection fails."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from fastpull.telemetry.events import NOTICED_SECONDS

if TYPE_CHECKING:
    from fastpull.errors import FastpullError

REPEATED_SECONDS = 30.0
"""A failure counts as repeated for so long after the last one of its cause."""

_NUMBER = re.compile(r"[0-9a-f]{32,}|[0-9]+")
_MAX_CAUSES = 1000


class FailureCauses:
    """The causes of failures of late."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, bool], float] = {}

    def is_repeated(self, host: str, error: FastpullError, pause_seconds: float) -> bool:
        """Note a failure; return whether one of that cause was noted a moment ago.

        Args:
            host: that was asked.
            error: the failure. An HTTP status is a cause, whatever was asked for; numbers in other messages, such as
                those of bytes, make no other cause, nor do digests.
            pause_seconds: until the next try. A pause that users notice is news after one that they do not.
        """
        is_noticed = pause_seconds >= NOTICED_SECONDS
        status = getattr(error, "status", None)
        what = _NUMBER.sub("", str(error)) if status is None else str(status)
        cause, now = (host, what, is_noticed), time.monotonic()
        last = self._last.get(cause)
        if len(self._last) >= _MAX_CAUSES:
            self._last.clear()
        self._last[cause] = now
        return last is not None and now - last < REPEATED_SECONDS
