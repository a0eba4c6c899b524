"""What a job on many nodes did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from fastpull.oci.digest import Digest


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node's part of an image.

    Attributes:
        rank: of the node.
        host: its name.
        seconds: until it had done its work, from when the job began with the image; by rank 0's clock.
        resolve_seconds: until it knew what the image is; by its own clock.
        exchange_seconds: until it had all bytes, of blobs or of runs; likewise. 0 if it had them before, or did not get
            them.
        fetched, received, sent: bytes of blobs from the registry, from other nodes, to other nodes.
        built: the numbers of the layers that it compressed for all nodes.
        runs_received, runs_sent: bytes of compressed layers from other nodes, to other nodes.
        assembled_seconds: until it had made its file of the layers; likewise. 0 if it made no file with others.
        max_memory: the most that its process had in memory, in bytes.
        error: why it failed; empty if it did not.
        cause_exit_code: of the error's family; 0 if there is none.
    """

    rank: int
    host: str
    seconds: float
    resolve_seconds: float
    exchange_seconds: float
    fetched: int
    received: int
    sent: int
    built: Sequence[int]
    runs_received: int
    runs_sent: int
    assembled_seconds: float
    max_memory: int
    error: str = ""
    cause_exit_code: int = 0


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """An image on all nodes of a job.

    Attributes:
        source: as it was given.
        digest: of its manifest; None if no node got to know it.
        size: of its blobs, in bytes.
        nodes: that took part, by rank.
        lost: ranks that died, or were given up.
        seconds_to_first, seconds_to_all: until the first, and until the last node had done its work; 0 if none has.
        registry_bytes: of blobs, that the nodes got from the registry.
        exchanged_bytes: of blobs, that the nodes got from each other.
        run_bytes: of compressed layers, likewise.
    """

    source: str
    digest: Digest | None
    size: int
    nodes: tuple[NodeReport, ...]
    lost: tuple[int, ...]
    seconds_to_first: float
    seconds_to_all: float
    registry_bytes: int
    exchanged_bytes: int
    run_bytes: int

    @classmethod
    def of(
        cls, source: str, digest: Digest | None, size: int, nodes: Sequence[NodeReport], lost: Sequence[int]
    ) -> Self:
        """Sums up what the nodes say."""
        done = [node.seconds for node in nodes if not node.error]
        return cls(
            source,
            digest,
            size,
            tuple(sorted(nodes, key=lambda node: node.rank)),
            tuple(sorted(lost)),
            min(done, default=0.0),
            max(done, default=0.0),
            sum(node.fetched for node in nodes),
            sum(node.received for node in nodes),
            sum(node.runs_received for node in nodes),
        )
