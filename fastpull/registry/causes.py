"""Failures grouped by cause: when a network fails, every connection fails with the same cause."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from fastpull.telemetry.events import NOTICED_SECONDS

if TYPE_CHECKING:
    from fastpull.errors import FastpullError

REPEATED_SECONDS = 30.0
"""How long after the last failure another one of the same cause counts as repeated."""

_NUMBER = re.compile(r"[0-9a-f]{32,}|[0-9]+")
_MAX_CAUSES = 1000


class FailureCauses:
    """The causes of recent failures."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, bool], float] = {}

    def is_repeated(self, host: str, error: FastpullError, pause_seconds: float) -> bool:
        """Record a failure and return whether its cause was recorded recently.

        Args:
            host: the host of the request.
            error: the failure. Its HTTP status is the cause; without one its message is, less numbers and digests.
            pause_seconds: the pause before the next attempt. A pause that users notice is reported again even if a
                shorter one was reported.
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
