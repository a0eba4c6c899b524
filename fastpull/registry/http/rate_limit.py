"""Rate limits that a registry announces before they are reached.

Spec: draft-ietf-httpapi-ratelimit-headers, as Docker Hub sends them: ``ratelimit-remaining: 93;w=21600``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

_VALUE = re.compile(r"\s*(\d{1,9})\s*(?:;\s*w=(\d{1,9}))?\s*(?:[;,].*)?")
_LOW_SHARE = 0.1
_LOW = 5


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A rate limit, as announced in response headers.

    Attributes:
        limit: the number of requests allowed in a window.
        remaining: the number of requests left in this window.
        window_seconds: the length of the window; None if not announced.
    """

    limit: int
    remaining: int
    window_seconds: int | None

    @classmethod
    def parse(cls, headers: Mapping[str, str]) -> Self | None:
        """Parse response headers; None if they announce no valid limit."""
        for prefix in ("RateLimit", "X-RateLimit"):
            limit = _VALUE.fullmatch(headers.get(f"{prefix}-Limit", ""))
            remaining = _VALUE.fullmatch(headers.get(f"{prefix}-Remaining", ""))
            if limit and remaining:
                window = remaining[2] or limit[2]
                return cls(int(limit[1]), int(remaining[1]), int(window) if window else None)
        return None

    @property
    def is_low(self) -> bool:
        """Whether to warn the user: at most a tenth or five requests are left."""
        return self.remaining <= max(_LOW, int(self.limit * _LOW_SHARE)) and self.remaining < self.limit

    def __str__(self) -> str:
        window = f" in {self.window_seconds / 3600:g} h" if self.window_seconds else ""
        return f"{self.remaining} of {self.limit} requests{window} are left"
