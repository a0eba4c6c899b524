"""The limit of the machine for a job, computed from the measurements of `bench.stages`.

A *stage* is work that a job cannot avoid: to receive, inflate, hash or write bytes. The limit is the time of a program
that does nothing else, keeps all cores busy and never waits. It is the larger of two values: the processor time of all
stages divided by the cores, and the longest chain of one layer. A chain is a stage where each byte waits for the one
before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class LimitStage(StrEnum):
    """The stages, in the order of the data flow."""

    RECEIVE = "receive"
    READ = "read"
    HASH_BLOB = "hash blob"
    STORE = "store blob"
    INFLATE = "inflate"
    HASH_TAR = "hash tar"
    SCAN = "scan"
    FILES = "write files"
    COMPRESS = "compress"
    BLOCKS = "write image"


CHAINS = (LimitStage.HASH_BLOB, LimitStage.INFLATE, LimitStage.HASH_TAR)
"""The stages that cannot be parallelized within a layer."""


@dataclass(frozen=True, slots=True)
class LimitWork:
    """The processor time of stages on one thread.

    Attributes:
        seconds: processor seconds of each stage by layer, from the base to the top.
        blob_bytes: compressed size of all layers.
        tar_bytes: uncompressed size of all layers; 0 if none was inflated.
        entries: number of entries in all layers; 0 if none was inflated.
    """

    seconds: Mapping[LimitStage, Sequence[float]]
    blob_bytes: int
    tar_bytes: int
    entries: int

    def total(self, stage: LimitStage) -> float:
        """Return the processor seconds of a stage over all layers."""
        return sum(self.seconds.get(stage, ()))


@dataclass(frozen=True, slots=True)
class Limit:
    """The lower bound of a job's time.

    Attributes:
        seconds: the larger of `shared_seconds` and `chain_seconds`.
        shared_seconds: processor seconds of all stages, divided by the cores.
        chain_seconds: seconds of the longest chain of one layer.
        chain: stage of that chain; None without one.
    """

    seconds: float
    shared_seconds: float
    chain_seconds: float
    chain: LimitStage | None


def limit_of(work: LimitWork, stages: Sequence[LimitStage], cores: int) -> Limit:
    """Compute the limit of a job.

    Args:
        work: measurements, of at least the job's stages.
        stages: stages of the job.
        cores: number of cores the job may use.
    """
    shared = sum(map(work.total, stages)) / cores
    chains = [(max(work.seconds[stage]), stage) for stage in stages if stage in CHAINS and work.seconds.get(stage)]
    longest, chain = max(chains, key=lambda pair: pair[0], default=(0.0, None))
    return Limit(max(shared, longest), shared, longest, chain)
