"""The start of a job: the ranks compare what they were asked for, and claim their caches and outputs."""

from __future__ import annotations

import asyncio
import platform
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fastpull._version import __version__
from fastpull.cache.store import Store
from fastpull.cluster.blobs.claims import Claim
from fastpull.cluster.control.agreement import check_agreement, check_claims, elect
from fastpull.cluster.control.channel import ROOT
from fastpull.cluster.messages import ClaimResult, Claims, ClaimsAccepted, Hello, JobStart
from fastpull.errors import CacheError, FastpullError, OutputError, RankFailed

if TYPE_CHECKING:
    from fastpull.cluster.control.channel import ControlChannel


class JobStartup:
    """One rank's part in the start of a job.

    Args:
        channel: the control channel of the job.
        cache: the cache of this node.
        outputs: the paths that this rank will write.
    """

    def __init__(self, channel: ControlChannel, cache: str, outputs: Sequence[str]) -> None:
        self._channel = channel
        self._cache = cache
        self._outputs = outputs
        self._claims: list[Claim] = []

    async def agree(self, asked: Mapping[str, str], *, each_rank: bool) -> JobStart:
        """Compare what all ranks were asked for, and elect the ranks that work.

        Args:
            asked: the values of options that have to be equal on all ranks, by name.
            each_rank: whether every rank counts as a node of its own.

        Raises:
            Disagreement: the ranks were asked for different things.
            ClusterError: a rank does not answer.
        """
        channel = self._channel
        hello = Hello(platform.node(), channel.fabric.node, __version__, asked)
        hellos = await channel.gather(hello, range(channel.fabric.size), "the ranks came together")
        if not channel.is_root:
            start = await channel.receive(JobStart)
            channel.hosts = dict(start.hosts)
            return start
        channel.hosts = {rank: one.host for rank, one in hellos.items()}
        check_agreement(hellos)
        members = elect(hellos, each_rank=each_rank)
        start = JobStart(uuid.uuid4().hex, tuple(members), channel.hosts)
        channel.broadcast(start)
        return start

    async def claim(self, start: JobStart) -> None:
        """Check that no two members share a cache or an output. For members.

        Raises:
            Disagreement: two members share a path.
            ClusterError: a member could not claim its paths, or does not answer.
        """
        channel = self._channel
        outcome = await self._claim_paths(start.job)
        claims = await channel.gather(outcome, start.members, "the ranks looked at their caches")
        if not channel.is_root:
            await channel.receive(ClaimsAccepted)
            return
        for rank, one in claims.items():
            if one.error:
                raise RankFailed(rank, channel.hosts[rank], one.error)
        check_claims({rank: one.results for rank, one in claims.items()}, channel.hosts)
        channel.broadcast(ClaimsAccepted(), [rank for rank in start.members if rank != ROOT])

    async def _claim_paths(self, job: str) -> Claims:
        results: dict[str, ClaimResult] = {}
        try:
            store = await asyncio.to_thread(Store, self._cache)
            wanted: list[tuple[str, str, str, type[CacheError | OutputError]]]
            wanted = [("cache", self._cache, f"{store.root}/cache", CacheError)]
            wanted += [("output", path, path.rstrip("/"), OutputError) for path in self._outputs]
            for kind, shown, path, family in wanted:
                claim = Claim(path, job, self._channel.rank, family)
                self._claims.append(claim)
                results[kind] = ClaimResult(shown, await asyncio.to_thread(claim.acquire))
        except FastpullError as error:
            return Claims(results, error.message)
        return Claims(results)

    async def release(self) -> None:
        """Release all claims. May be called twice."""
        for claim in self._claims:
            await asyncio.to_thread(claim.release)
