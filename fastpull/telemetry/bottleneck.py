"""The bottleneck: which stage a pull's time went to, in one line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpull.telemetry.trace import Stage, Wait

if TYPE_CHECKING:
    from fastpull.telemetry.timing import StageTime

_SATURATED = 0.8  # from here on the cores are what is scarce: some of their time always goes to others

_OF_LAYERS = (Stage.READ, Stage.INFLATE, Stage.WRITE)
_AFTER_LAYERS = (Stage.MERGE, Stage.PLAN, Stage.GATHER, Stage.METADATA, Stage.COMMIT, Stage.PUBLISH)
_AT_WORK = {Wait.BYTES: Stage.DOWNLOAD, Wait.HASH: Stage.HASH, Wait.COMPRESS: Stage.COMPRESS}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The stage that most time went to.

    Where the cores were busy all the time, that is the stage that took most of them. Else it is the one that the
    layers' own threads were at, or waited for, most of the time: a stage that is too slow makes them wait.

    Attributes:
        stage: its name.
        share: of all cores' time, or of the pull's.
        seconds: that the pull took.
        cores: that there were.
        busy_cores: how many of them were busy on average, with this pull.
        is_of_cores: what the share is of.
    """

    stage: str
    share: float
    seconds: float
    cores: int
    busy_cores: float
    is_of_cores: bool

    def __str__(self) -> str:
        if self.is_of_cores:
            cores = f"{self.cores} core{'' if self.cores == 1 else 's'}"
            return f"most time went to {self.stage} ({self.share:.0%} of {cores} for {self.seconds:.1f} s)"
        busy = f"{self.busy_cores:.1f} of {self.cores} cores used"
        return f"most time went to {self.stage} ({self.share:.0%} of {self.seconds:.1f} s, {busy})"


def find_bottleneck(
    stages: Mapping[Stage, StageTime],
    waits: Mapping[Wait, float],
    *,
    layers_seconds: float,
    seconds: float,
    cores: int,
) -> Bottleneck | None:
    """Finds it; None if nothing took any time.

    Args:
        stages: what each took.
        waits: what was waited for.
        layers_seconds: in which layers were at work.
        seconds: that the whole took, from the resolved image.
        cores: that there are.
    """
    cpu: dict[Stage, float] = {
        stage: taken.cpu_seconds for stage, taken in stages.items() if stage is not Stage.RESOLVE
    }
    available = cores * seconds
    if available <= 0 or not cpu:
        return None
    busy = sum(cpu.values())
    is_of_cores = busy >= _SATURATED * available
    spent = cpu if is_of_cores else _path(stages, waits, layers_seconds)
    stage = max(spent, key=spent.__getitem__)
    share = min(1.0, spent[stage] / (available if is_of_cores else seconds))
    return Bottleneck(str(stage), share, seconds, cores, min(float(cores), busy / seconds), is_of_cores)


def _path(stages: Mapping[Stage, StageTime], waits: Mapping[Wait, float], layers_seconds: float) -> dict[Stage, float]:
    """The pull's own seconds, by the stage that they were spent at.

    Layers run side by side: what their threads did is brought down to the time that they took together. After them one
    thread does one thing at a time.
    """

    def busy(stage: Stage) -> float:
        return stages[stage].busy_seconds if stage in stages else 0.0

    path = {stage: busy(stage) for stage in _OF_LAYERS}
    path.update({stage: waits.get(wait, 0.0) for wait, stage in _AT_WORK.items()})
    total = sum(path.values())
    path = {stage: spent / total * layers_seconds if total else 0.0 for stage, spent in path.items()}
    path.update({stage: busy(stage) for stage in _AFTER_LAYERS})
    path[Stage.COPY] = waits.get(Wait.COPY, 0.0)
    return path
