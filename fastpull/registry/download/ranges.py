"""Which bytes to ask for next: pure decisions, without a connection and without a clock."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

MIB = 1 << 20
FIRST_RANGE = 8 * MIB
"""The size of the first range of a blob, which also tells whether the host knows ranges, and where the blob is."""

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")


@dataclass(frozen=True, slots=True)
class ContentRange:
    """What a 206 says that its body is.

    Attributes:
        start, stop: of the body within the blob; ``stop`` is one past its last byte.
        total: size of the blob, or None.

    Spec: RFC 9110, 14.4.
    """

    start: int
    stop: int
    total: int | None

    @classmethod
    def parse(cls, header: str) -> ContentRange | None:
        """Reads a ``Content-Range`` header; None for one that is not of bytes, or makes no sense."""
        match = _CONTENT_RANGE.fullmatch(header.strip())
        if match is None:
            return None
        start, last = int(match[1]), int(match[2])
        total = None if match[3] == "*" else int(match[3])
        if last < start or (total is not None and last >= total):
            return None
        return cls(start, last + 1, total)


class RangePlan:
    """Cuts the gaps of a blob into ranges, the lowest first, so that a reader from the front never waits long."""

    def __init__(self, gaps: Iterable[tuple[int, int]]) -> None:
        self._gaps = deque(gaps)

    @property
    def left(self) -> int:
        """Bytes that were not taken yet."""
        return sum(stop - start for start, stop in self._gaps)

    def take(self, size: int) -> tuple[int, int] | None:
        """The next range ``(start, stop)`` of at most ``size`` bytes; None when all were taken.

        A range ends at a multiple of 1 MiB where it can; a rest that would be under half of ``size`` is taken along.
        """
        if not self._gaps:
            return None
        start, stop = self._gaps.popleft()
        if stop - start > size + size // 2:
            cut = max(start + MIB, (start + size) // MIB * MIB)
            self._gaps.appendleft((cut, stop))
            stop = cut
        return start, stop
