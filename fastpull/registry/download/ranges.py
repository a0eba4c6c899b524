"""The ranges to request next: pure decisions, without I/O and without a clock."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

MIB = 1 << 20
FIRST_RANGE = 8 * MIB
"""The size of a blob's first range. Its response shows where the blob is, and whether the host supports ranges."""

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")


@dataclass(frozen=True, slots=True)
class ContentRange:
    """The ``Content-Range`` of a 206 response.

    Attributes:
        start, stop: the range of the body within the blob; ``stop`` is one past its last byte.
        total: the size of the blob, or None.

    Spec: RFC 9110, 14.4.
    """

    start: int
    stop: int
    total: int | None

    @classmethod
    def parse(cls, header: str) -> ContentRange | None:
        """Parse a ``Content-Range`` header; None if it is invalid or its unit is not bytes."""
        match = _CONTENT_RANGE.fullmatch(header.strip())
        if match is None:
            return None
        start, last = int(match[1]), int(match[2])
        total = None if match[3] == "*" else int(match[3])
        if last < start or (total is not None and last >= total):
            return None
        return cls(start, last + 1, total)


class RangePlan:
    """Cuts the gaps of a blob into ranges, lowest first, because the blob is read from its start.

    Args:
        gaps: the missing ranges, in order.
    """

    def __init__(self, gaps: Iterable[tuple[int, int]]) -> None:
        self._gaps = deque(gaps)

    @property
    def left(self) -> int:
        """The number of bytes not yet taken."""
        return sum(stop - start for start, stop in self._gaps)

    def take(self, size: int) -> tuple[int, int] | None:
        """Return the next range ``(start, stop)`` of about ``size`` bytes; None after the last one.

        A range ends at a multiple of 1 MiB if possible. A remainder smaller than half of ``size`` joins the range.
        """
        if not self._gaps:
            return None
        start, stop = self._gaps.popleft()
        if stop - start > size + size // 2:
            cut = max(start + MIB, (start + size) // MIB * MIB)
            self._gaps.appendleft((cut, stop))
            stop = cut
        return start, stop
