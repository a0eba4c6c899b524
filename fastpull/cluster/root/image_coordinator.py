"""Rank 0's state of one image on all nodes, and its decisions."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from fastpull.cluster.blobs.exchange_coordinator import ExchangeCoordinator
from fastpull.cluster.control.channel import ROOT
from fastpull.cluster.messages import Failure, ImageResolved, StopImage
from fastpull.cluster.root.report import ClusterReport, NodeReport
from fastpull.telemetry.events import NodeDone, OnEvent

if TYPE_CHECKING:
    from fastpull.cluster.control.channel import ControlChannel
    from fastpull.cluster.messages import ImageDocuments, ImageFailed, ImageFinished
    from fastpull.cluster.root.image_task import ImageTask


class ImageCoordinator:
    """One image on all nodes.

    Args:
        task: rank 0's own part.
        members: the ranks that work.
        channel: the control channel of the job.
        on_event: receives an event for each node that is done.

    Attributes:
        members: the ranks that take part, which were not lost at the start.
        ranks: the number of members.
    """

    def __init__(self, task: ImageTask, members: list[int], channel: ControlChannel, on_event: OnEvent) -> None:
        self._task = task
        self._channel = channel
        self._on_event = on_event
        self._began = time.monotonic()
        self._exchange: ExchangeCoordinator | None = None
        self._reports: dict[int, NodeReport] = {}
        self._failures: list[Failure] = []
        self.members = [rank for rank in members if rank not in channel.lost]
        self.ranks = len(self.members)

    def plan(self) -> None:
        """Begin to coordinate the exchange, once the image is resolved."""
        task = self._task
        self._exchange = ExchangeCoordinator(
            task.number, task.blob_sizes, self.ranks, self.members, self._channel, task.blob_numbers
        )
        for rank in {*self._channel.lost, *(failure.rank for failure in self._failures)}:
            self._exchange.drop(rank)

    def send_resolved(self, resolved: ImageDocuments | None = None, failure: Failure | None = None) -> None:
        """Send what the image is, or why that is unknown, to all other members."""
        others = [rank for rank in self.members if rank != ROOT]
        self._channel.broadcast(ImageResolved(self._task.number, resolved, failure), others)

    def send_failure_to_resolve(self) -> None:
        """Send rank 0's error to the members that wait for `ImageResolved`, if it failed before it resolved."""
        error = self._task.error
        if error is not None and self._task.image is None:
            self.send_resolved(failure=Failure(ROOT, error.message, error.exit_code))

    def unfinished(self) -> list[int]:
        """Return the ranks that have not reported the end of their part."""
        return [rank for rank in self.members if rank not in self._reports and rank not in self._channel.lost]

    def on_failed(self, rank: int, message: ImageFailed) -> None:
        """Stop all members after an error of one, or go on without it."""
        self._failures.append(Failure(rank, message.failure.reason, message.failure.exit_code))
        if not self._channel.terms.best_effort:
            if len(self._failures) == 1:
                self._channel.broadcast(StopImage(self._task.number, self._failures[0]), self.members)
        elif self._exchange is not None:
            self._exchange.drop(rank)

    def on_lost(self, rank: int) -> None:
        """Go on without a lost rank."""
        if self._exchange is not None:
            self._exchange.drop(rank)

    def on_finished(self, rank: int, message: ImageFinished) -> None:
        """Record the report of a rank that is done."""
        seconds = round(time.monotonic() - self._began, 3)
        report = NodeReport(rank, self._channel.hosts.get(rank, "?"), seconds, **asdict(message.report))
        self._reports[rank] = report
        if not message.is_consequence:
            amounts = report.fetched, report.received + report.runs_received
            self._on_event(NodeDone(self._task.source, rank, report.host, seconds, *amounts, report.error))

    def verdict(self) -> Failure | None:
        """Return why the job does not have the image; None if all nodes have it, or one with ``--best-effort``."""
        if self._failures and (not self._channel.terms.best_effort or all(one.error for one in self._reports.values())):
            return self._failures[0]
        return None

    def report(self) -> ClusterReport:
        """Return the report of all nodes."""
        task, image = self._task, self._task.image
        lost = [rank for rank in self.members if rank in self._channel.lost]
        digest = image.digest if image else None
        return ClusterReport.of(task.source, digest, sum(task.blob_sizes), list(self._reports.values()), lost)

    def close(self) -> None:
        """Stop waiting for ranks."""
        if self._exchange is not None:
            self._exchange.close()
