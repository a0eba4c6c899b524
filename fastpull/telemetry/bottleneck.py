"""The bottleneck: the stage that took most of a pull's time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpull.telemetry.trace import Stage, Wait

if TYPE_CHECKING:
    from fastpull.telemetry.timing import StageTime

_SATURATED = 0.8  # above this share of busy cores, cores are scarce; other processes always take some time

_OF_LAYERS = (Stage.READ, Stage.INFLATE, Stage.WRITE)
_AFTER_LAYERS = (Stage.MERGE, Stage.PLAN, Stage.GATHER, Stage.METADATA, Stage.COMMIT, Stage.PUBLISH)
_AT_WORK = {Wait.BYTES: Stage.DOWNLOAD, Wait.HASH: Stage.HASH, Wait.COMPRESS: Stage.COMPRESS}


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The stage that took most of the time.

    If all cores were busy, this is the stage with the most processor time. Otherwise it is the stage at which
    the threads of the layers spent or waited most of their time, because they wait for every slow stage.

    Attributes:
        stage: name of the stage.
        share: its share of the time of all cores, or of the duration of the pull.
        seconds: duration of the pull.
        cores: number of available cores.
        busy_cores: average number of cores that this pull kept busy.
        is_of_cores: whether `share` is a share of the time of all cores.
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
    """Return the bottleneck of a pull; None if no stage took any time.

    Args:
        stages: time of each stage.
        waits: seconds of waiting, by reason.
        layers_seconds: duration of the work on layers.
        seconds: duration of the pull, from the resolved image on.
        cores: number of available cores.
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
    """Return the seconds of the pull, by stage.

    Layers run concurrently, so that the time of their threads is scaled to the duration of their work. After
    the layers, one stage follows the other.
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
