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
    """What a pull did.

    Attributes:
        image: that was pulled.
        output: what the sink made.
        entries: of all layers.
        unpacked: uncompressed bytes of all layers.
        cached_layers: of which nothing was downloaded.
        layers_seconds: until all layers were unpacked and verified.
        merge_seconds, commit_seconds: of what came after.
        stages: what each stage took, by its name.
        bottleneck: the stage that most time went to; None if there is none to be named.
        warnings: what the runtimes that the output is for will not do as the image says.
        was_finished: the cache had the output already, and nothing was unpacked.
        was_there: the output was there already, and nothing was done; `entries` and `unpacked` are 0.
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
        """Of a pull that took a finished image out of the cache.

        Args:
            image: that was asked for.
            output: what the sink made of the finished image.
            seconds: that it took.
            facts: of the making, as the cache has them.
        """
        entries, unpacked = facts.get("entries", 0), facts.get("unpacked", 0)
        warnings = tuple(facts.get("warnings", ()))
        layers = len(image.layers)
        return cls(image, output, entries, unpacked, layers, 0, 0, seconds, {}, None, warnings, was_finished=True)

    @classmethod
    def of_unchanged(cls, image: Image, output: SinkReport) -> Self:
        """Of a pull that found its output where it was to be made."""
        return cls(image, output, 0, 0, 0, 0, 0, 0, {}, None, was_there=True)

    @property
    def seconds(self) -> float:
        """From the resolved image to the published output."""
        return self.layers_seconds + self.merge_seconds + self.commit_seconds
