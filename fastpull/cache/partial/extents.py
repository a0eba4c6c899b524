"""Sets of byte ranges: the parts of a blob that are present."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Extents:
    """Disjoint, sorted half-open ranges ``[start, stop)``. Adjacent ranges are merged."""

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, start: int, stop: int) -> None:
        """Add a range; it may overlap ranges already present."""
        if start >= stop:
            return
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def overlap(self, start: int, stop: int) -> bool:
        """Return whether any byte of a range is present."""
        after = bisect_right(self._stops, start)
        return after < len(self._starts) and self._starts[after] < stop

    def prefix(self) -> int:
        """Return the end of the contiguous part from 0."""
        return self._stops[0] if self._starts and self._starts[0] == 0 else 0

    def gaps(self, size: int) -> Iterator[tuple[int, int]]:
        """Iterate over the missing ranges within ``[0, size)``."""
        at = 0
        for start, stop in self:
            if start > at:
                yield at, min(start, size)
            at = stop
            if at >= size:
                return
        if at < size:
            yield at, size

    @property
    def total(self) -> int:
        """Number of bytes present."""
        return sum(self._stops) - sum(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._stops, strict=True)))

    def __repr__(self) -> str:
        return f"Extents({', '.join(f'{start}-{stop}' for start, stop in self)})"
