"""The plan of an exchange: which rank fetches and serves which chunk. Pure decisions, without network and clock.

Every blob is cut into chunks. A chunk that a rank already has is served by such a rank and never fetched; any other
chunk is fetched by one rank. An idle rank takes the next chunk, in the same order in every run: a slow rank does less,
and the others wait for it no longer than for one chunk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MIB = 1 << 20
CHUNK_SIZE = 16 * MIB
"""The size of the chunks of a large image, so large that a request's round trip does not matter."""
_MIN_CHUNK = 2 * MIB
_CHUNKS_PER_RANK = 4  # at least, for an image that is small for its ranks


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a blob that one rank delivers to all ranks that lack it.

    Attributes:
        number: its number within the image.
        blob: the number of the blob within the image.
        start, stop: the range within the blob, in bytes.
    """

    number: int
    blob: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Holding:
    """What a rank has of an image, and what it wants.

    Attributes:
        has: for each chunk whether all of it is on the rank.
        wants: the blobs whose missing chunks the rank needs; of other blobs it only serves what it has.
    """

    has: tuple[bool, ...]
    wants: frozenset[int]

    def lacks(self, chunk: Chunk) -> bool:
        """Return whether the rank needs a chunk that it does not have."""
        return chunk.blob in self.wants and not self.has[chunk.number]


def cut(sizes: Sequence[int], ranks: int) -> tuple[Chunk, ...]:
    """Cut blobs into chunks, in the order in which they are fetched: the largest blob first, as the pipeline reads.

    Args:
        sizes: the sizes of the blobs, in bytes.
        ranks: the number of ranks that share the work.
    """
    share = sum(sizes) // (ranks * _CHUNKS_PER_RANK) // MIB * MIB
    length = min(CHUNK_SIZE, max(_MIN_CHUNK, share))
    chunks: list[Chunk] = []
    for blob in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        for start in range(0, sizes[blob], length):
            chunks.append(Chunk(len(chunks), blob, start, min(start + length, sizes[blob])))
    return tuple(chunks)


class DistributionPlan:
    """The remaining work on an image.

    Args:
        chunks: the chunks of the image.
        holdings: the holdings of the ranks that take part.
    """

    def __init__(self, chunks: Sequence[Chunk], holdings: Mapping[int, Holding]) -> None:
        self._lacking = [set(receivers(holdings, chunk)) for chunk in chunks]
        self._holders = [{rank for rank, holding in holdings.items() if holding.has[chunk.number]} for chunk in chunks]
        self._remaining = [chunk.number for chunk in chunks if self._lacking[chunk.number]]
        self._chunks = chunks
        self._leases: dict[int, int] = {}  # the rank that delivers a chunk
        self._blob_owners: dict[int, int] = {}  # the rank that fetches a whole blob

    def lease(self, rank: int) -> int | None:
        """Return the next chunk for a rank to deliver; None where no chunk is left for it."""
        for at, number in enumerate(self._remaining):
            holders = self._holders[number]
            if rank in holders or (not holders and rank in self._lacking[number]):
                del self._remaining[at]
                self._leases[number] = rank
                return number
        return None

    def lease_blob(self, blob: int, rank: int) -> bool:
        """Lease to a rank all chunks of a blob that have to be fetched; return whether it is the first to ask.

        This is for a blob whose host ignores ranges.
        """
        if self._blob_owners.setdefault(blob, rank) != rank:
            return False
        for chunk in self._chunks:
            if chunk.blob == blob and not self._holders[chunk.number] and chunk.number in self._remaining:
                self._remaining.remove(chunk.number)
                self._leases[chunk.number] = rank
        return True

    def mark_delivered(self, number: int) -> None:
        """Record that a chunk has left the rank that leased it."""
        self._leases.pop(number, None)

    def outstanding(self) -> dict[int, list[int]]:
        """Return the leased chunks that are not delivered, by rank."""
        found: dict[int, list[int]] = {}
        for number, rank in self._leases.items():
            found.setdefault(rank, []).append(number)
        return found


def receivers(holdings: Mapping[int, Holding], chunk: Chunk) -> list[int]:
    """Return the ranks that lack a chunk and want it, in ascending order."""
    return sorted(rank for rank, holding in holdings.items() if holding.lacks(chunk))


def next_ranks(rank: int, origin: int, wanting: Sequence[int], turn: int, fan_out: int) -> list[int]:
    """Return the ranks to which a rank forwards a frame.

    The ranks form a tree, whose root is the frame's origin. The order of the others rotates from chunk to chunk, so
    that all send about as much as they receive.

    Args:
        rank: the rank that has the frame.
        origin: the root of the tree.
        wanting: the ranks that lack the frame, in ascending order.
        turn: the rotation, such as the number of the chunk.
        fan_out: the number of ranks to which each rank sends; 1 makes a chain of the tree.
    """
    others = [one for one in wanting if one != origin]
    if not others:
        return []
    first = turn % len(others)
    order = [origin, *others[first:], *others[:first]]
    if rank not in order:
        return []
    child = order.index(rank) * fan_out + 1
    return order[child : child + fan_out]
