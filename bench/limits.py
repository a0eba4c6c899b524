"""Limits: what the machine itself needs for a job, computed from what `bench.stages` has measured.

A *stage* is work that a job cannot do without: the bytes have to be received, inflated, hashed, written. The limit is
the time of a program that does nothing else, keeps all cores busy, and never waits: no less than the stages' CPU time
divided by the cores, and no less than the longest stage of one layer that is a chain, where each byte has to wait for
the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class LimitStage(StrEnum):
    """What is done with bytes, in the order in which they meet it."""

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
"""The stages that cannot be divided within a layer."""


@dataclass(frozen=True, slots=True)
class LimitWork:
    """What stages took, single threaded.

    Attributes:
        seconds: of CPU, for each stage by layer, from the base to the top.
        blob_bytes: of all layers as they are stored.
        tar_bytes: of all layers, inflated; 0 if none was.
        entries: of all layers; likewise.
    """

    seconds: Mapping[LimitStage, Sequence[float]]
    blob_bytes: int
    tar_bytes: int
    entries: int

    def total(self, stage: LimitStage) -> float:
        """A stage's CPU seconds over all layers."""
        return sum(self.seconds.get(stage, ()))


@dataclass(frozen=True, slots=True)
class Limit:
    """No job can take less.

    Attributes:
        seconds: the larger of the two that follow.
        shared_seconds: the CPU seconds of all stages, divided by the cores.
        chain_seconds: the longest stage of one layer that cannot be divided.
        chain: that stage; None if there is none.
    """

    seconds: float
    shared_seconds: float
    chain_seconds: float
    chain: LimitStage | None


def limit_of(work: LimitWork, stages: Sequence[LimitStage], cores: int) -> Limit:
    """The limit of a job.

    Args:
        work: with at least the job's stages.
        stages: of the job.
        cores: that it may use.
    """
    shared = sum(map(work.total, stages)) / cores
    chains = [(max(work.seconds[stage]), stage) for stage in stages if stage in CHAINS and work.seconds.get(stage)]
    longest, chain = max(chains, key=lambda pair: pair[0], default=(0.0, None))
    return Limit(max(shared, longest), shared, longest, chain)
