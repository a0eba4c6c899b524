"""What rank 0 knows of an image on all nodes, and decides."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from fastpull.cluster.blobs.exchange_coordinator import ExchangeCoordinator
from fastpull.cluster.root.report import ClusterReport, NodeReport
from fastpull.telemetry.events import NodeDone, OnEvent

if TYPE_CHECKING:
    from fastpull.cluster.control.channel import ControlChannel
    from fastpull.cluster.root.image_task import ImageTask


class ImageCoordinator:
    """One image, seen from rank 0.

    Args:
        errand: rank 0's own part.
        members: the ranks that take part.
        council: of the job.
        on_event: told of each node that is done.

    Attributes:
        members: those of them that are there.
        ranks: how many.
    """

    def __init__(self, errand: ImageTask, members: list[int], council: ControlChannel, on_event: OnEvent) -> None:
        self._errand = errand
        self._council = council
        self._on_event = on_event
        self._began = time.monotonic()
        self._chair: ExchangeCoordinator | None = None
        self._reports: dict[int, NodeReport] = {}
        self._failures: list[dict[str, Any]] = []
        self.members = [rank for rank in members if rank not in council.lost]
        self.ranks = len(self.members)

    def plan(self) -> None:
        """Takes the chair of the exchange, once the image is resolved."""
        errand = self._errand
        self._chair = ExchangeCoordinator(
            errand.number, errand.blob_sizes, self.ranks, self.members, self._council, errand.blob_numbers
        )
        for rank in {*self._council.lost, *(failure["rank"] for failure in self._failures)}:
            self._chair.drop(rank)

    async def told_or_failed(self) -> None:
        """Tells those who wait to hear what the image is, if rank 0 has failed before it knew."""
        error, number = self._errand.error, self._errand.number
        if error is not None and self._errand.image is None:
            said = {"error": error.message, "exit_code": error.exit_code}
            await self._council.spread(f"{number}.documents", said, self.members)

    def unfinished(self) -> list[int]:
        """The ranks that have not said what has come of their part."""
        return [rank for rank in self.members if rank not in self._reports and rank not in self._council.lost]

    def on_failed(self, rank: int, failure: dict[str, Any]) -> None:
        """A rank can do no more: all stop, or go on without it."""
        self._failures.append({**failure, "rank": rank})
        if not self._council.terms.best_effort:
            if len(self._failures) == 1:
                self._council.post_all(self.members, "stop", {"image": self._errand.number, **self._failures[0]})
        elif self._chair is not None:
            self._chair.drop(rank)

    def on_lost(self, rank: int) -> None:
        """A rank is not counted on any more, and the job goes on."""
        if self._chair is not None:
            self._chair.drop(rank)

    def on_finished(self, rank: int, value: dict[str, Any]) -> None:
        """A rank has done its part."""
        seconds = round(time.monotonic() - self._began, 3)
        report = NodeReport(rank, self._council.hosts.get(rank, "?"), seconds, **value["report"])
        self._reports[rank] = report
        if not value["follows"]:
            source, amounts = self._errand.source, (report.fetched, report.received + report.runs_received)
            self._on_event(NodeDone(source, rank, report.host, seconds, *amounts, report.error))

    def verdict(self) -> dict[str, Any] | None:
        """Why the image is not to be had; None if it is, on one node at least, or on all where that is asked for."""
        if self._failures and (not self._council.terms.best_effort or all(one.error for one in self._reports.values())):
            return self._failures[0]
        return None

    def report(self) -> ClusterReport:
        """What has come of it."""
        errand, image = self._errand, self._errand.image
        lost = [rank for rank in self.members if rank in self._council.lost]
        digest = image.digest if image else None
        return ClusterReport.of(errand.source, digest, sum(errand.blob_sizes), list(self._reports.values()), lost)

    def close(self) -> None:
        """Nothing is waited for any more."""
        if self._chair is not None:
            self._chair.close()
