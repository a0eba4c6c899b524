"""The report of a pull."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from fastpull.oci.image import Image
    from fastpull.sinks.base import SinkReport
    from fastpull.telemetry.bottleneck import Bottleneck
    from fastpull.telemetry.timing import StageTime


@dataclass(frozen=True, slots=True)
class PullReport:
    """The result of a pull.

    Attributes:
        image: the pulled image.
        output: the report of the sink.
        entries: number of entries of all layers.
        unpacked: uncompressed bytes of all layers.
        cached_layers: number of layers of which nothing was downloaded.
        layers_seconds: seconds until all layers were unpacked and verified.
        merge_seconds, commit_seconds: seconds of the phases that followed.
        stages: time of each stage, by the name of the stage.
        bottleneck: the stage that took most of the time; None if no stage stands out.
        warnings: settings of the image that the runtimes will not follow.
        was_finished: whether the cache had the finished image, so that nothing was unpacked.
        was_there: whether the output existed unchanged, so that nothing was done; `entries` and `unpacked` are 0.
    """

    image: Image
    output: SinkReport
    entries: int
    unpacked: int
    cached_layers: int
    layers_seconds: float
    merge_seconds: float
    commit_seconds: float
    stages: dict[str, StageTime]
    bottleneck: Bottleneck | None
    warnings: tuple[str, ...] = ()
    was_finished: bool = False
    was_there: bool = False

    @classmethod
    def of_finished(cls, image: Image, output: SinkReport, seconds: float, facts: Mapping[str, Any]) -> Self:
        """Return the report of a pull that copied a finished image of the cache.

        Args:
            image: the requested image.
            output: the report of the sink.
            seconds: duration of the copy.
            facts: facts about the finished image, as the cache records them.
        """
        entries, unpacked = facts.get("entries", 0), facts.get("unpacked", 0)
        warnings = tuple(facts.get("warnings", ()))
        layers = len(image.layers)
        return cls(image, output, entries, unpacked, layers, 0, 0, seconds, {}, None, warnings, was_finished=True)

    @classmethod
    def of_unchanged(cls, image: Image, output: SinkReport) -> Self:
        """Return the report of a pull that found its output unchanged."""
        return cls(image, output, 0, 0, 0, 0, 0, 0, {}, None, was_there=True)

    @property
    def seconds(self) -> float:
        """Seconds from the resolved image to the published output."""
        return self.layers_seconds + self.merge_seconds + self.commit_seconds
