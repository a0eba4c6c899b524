"""The report of a job on many nodes."""

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
        rank: the rank of the node.
        host: its host name.
        seconds: the time from the start of the image until its work was done, by rank 0's clock.
        resolve_seconds: the time until it knew what the image is, by its own clock.
        exchange_seconds: the time until it had all bytes of blobs or of compressed layers, by its own clock; 0 if it
            had them before, or did not get them.
        fetched, received, sent: bytes of blobs from the registry, from other nodes, to other nodes.
        built: the numbers of the layers that it compressed for all nodes.
        runs_received, runs_sent: bytes of compressed layers from other nodes, to other nodes.
        assembled_seconds: the time until it had assembled its output from the layers, by its own clock; 0 if it built
            no layers with other nodes.
        max_memory: the peak memory of its process, in bytes.
        error: the message of its error; empty if there is none.
        cause_exit_code: the exit code of the error's family; 0 if there is no error.
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
        source: the image, as the user named it.
        digest: the digest of its manifest; None if it was not resolved.
        size: the size of its blobs, in bytes.
        nodes: the reports of the nodes that took part, by rank.
        lost: the ranks that died or were dropped.
        seconds_to_first, seconds_to_all: the time until the first and the last node were done; 0 if none was.
        registry_bytes: bytes of blobs that the nodes fetched from the registry.
        exchanged_bytes: bytes of blobs that the nodes received from each other.
        run_bytes: bytes of compressed layers that the nodes received from each other.
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
        """Sum up the reports of the nodes."""
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
