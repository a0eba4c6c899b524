"""Who fetches and who serves what: pure decisions, without a fabric and without a clock.

Every blob is cut into stretches. One that some rank has is served by such a rank, and never fetched; any other is
fetched by one rank. A rank that has nothing to do takes the next stretch, in the same order on every run: so a slow
rank does less, and nobody waits for it longer than for one stretch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MIB = 1 << 20
STRETCH_SIZE = 16 * MIB
"""Of a large blob: a request's round trip is small beside it."""
_MIN_STRETCH = 2 * MIB
_SHARES = 4  # stretches for each rank of an image that is small for its ranks


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a blob that one rank brings to all who lack it.

    Attributes:
        number: within the image.
        blob: number of the blob within the image.
        start, stop: within the blob, in bytes.
    """

    number: int
    blob: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Holding:
    """What a rank has of an image, and what it wants.

    Attributes:
        has: for each stretch whether all of it is there.
        wants: the blobs of which what is not there is to come; of others the rank only serves what it has.
    """

    has: tuple[bool, ...]
    wants: frozenset[int]

    def lacks(self, stretch: Chunk) -> bool:
        """Whether a stretch is to come."""
        return stretch.blob in self.wants and not self.has[stretch.number]


def cut(sizes: Sequence[int], ranks: int) -> tuple[Chunk, ...]:
    """Cuts blobs into stretches, in the order in which they are fetched: the largest blob first, as the engine reads.

    Args:
        sizes: of the blobs, in bytes.
        ranks: that share the work.
    """
    share = sum(sizes) // (ranks * _SHARES) // MIB * MIB
    length = min(STRETCH_SIZE, max(_MIN_STRETCH, share))
    stretches: list[Chunk] = []
    for blob in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        for start in range(0, sizes[blob], length):
            stretches.append(Chunk(len(stretches), blob, start, min(start + length, sizes[blob])))
    return tuple(stretches)


class DistributionPlan:
    """The work on an image that is left.

    Args:
        stretches: of the image.
        holdings: of the ranks that take part.
    """

    def __init__(self, stretches: Sequence[Chunk], holdings: Mapping[int, Holding]) -> None:
        self._lacking = [set(receivers(holdings, stretch)) for stretch in stretches]
        self._holders = [
            {rank for rank, holding in holdings.items() if holding.has[stretch.number]} for stretch in stretches
        ]
        self._left = [stretch.number for stretch in stretches if self._lacking[stretch.number]]
        self._stretches = stretches
        self._taken: dict[int, int] = {}  # who has which
        self._owners: dict[int, int] = {}  # of blobs that come as a whole

    def take(self, rank: int) -> int | None:
        """The next stretch for a rank to bring; None where there is no more for it."""
        for at, number in enumerate(self._left):
            holders = self._holders[number]
            if rank in holders or (not holders and rank in self._lacking[number]):
                del self._left[at]
                self._taken[number] = rank
                return number
        return None

    def take_whole(self, blob: int, rank: int) -> bool:
        """Gives a rank all of a blob that is to be fetched, if nobody has that: its host gives no ranges."""
        if self._owners.setdefault(blob, rank) != rank:
            return False
        for stretch in self._stretches:
            if stretch.blob == blob and not self._holders[stretch.number] and stretch.number in self._left:
                self._left.remove(stretch.number)
                self._taken[stretch.number] = rank
        return True

    def bring(self, number: int) -> None:
        """Takes note that a stretch has left the rank that took it."""
        self._taken.pop(number, None)

    def debtors(self) -> dict[int, list[int]]:
        """The ranks that took stretches and have not brought them."""
        found: dict[int, list[int]] = {}
        for number, rank in self._taken.items():
            found.setdefault(rank, []).append(number)
        return found


def receivers(holdings: Mapping[int, Holding], stretch: Chunk) -> list[int]:
    """The ranks that lack a stretch and want it, in the order of their numbers."""
    return sorted(rank for rank, holding in holdings.items() if holding.lacks(stretch))


def next_ranks(rank: int, origin: int, wanting: Sequence[int], turn: int, fan_out: int) -> list[int]:
    """To whom a rank sends a window on.

    The ranks stand in a tree, whose root is the one that has fetched or read the window. Who stands where turns from
    stretch to stretch, so that all send about as much as they receive.

    Args:
        rank: that has the window.
        origin: the root.
        wanting: the ranks that lack it, in the order of their numbers.
        turn: how far the order is turned: the number of the stretch.
        fan_out: to how many others each sends; 1 makes a chain of the tree.
    """
    others = [one for one in wanting if one != origin]
    if not others:
        return []
    first = turn % len(others)
    line = [origin, *others[first:], *others[:first]]
    if rank not in line:
        return []
    child = line.index(rank) * fan_out + 1
    return line[child : child + fan_out]


def to_bits(values: Sequence[bool]) -> str:
    """Truth values as a hexadecimal number, the first as its lowest bit."""
    return f"{sum(1 << number for number, value in enumerate(values) if value):x}"


def from_bits(text: str, count: int) -> tuple[bool, ...]:
    """So many truth values of a hexadecimal number."""
    bits = int(text, 16)
    return tuple(bool(bits >> number & 1) for number in range(count))
