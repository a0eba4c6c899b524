"""The meter: where the time of a pull goes, stage by stage, and, for a trace, when.

Seconds of every stage are always counted, since that costs a look at the clock for each chunk. A layer's own thread
does several stages in turn: its `LayerTimer` is told once for each chunk, and tells the lanes every 20 ms. Everything
else is timed around a whole batch, range or phase.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from fastpull.telemetry.trace import GRAIN_SECONDS, Lane, Span, Stage, Trace, TrackGroup, Wait

clock = time.perf_counter
"""The clock of all spans."""

_WITHOUT_HASH = 3  # lanes of a watch
_COPY_SECONDS = 0.001  # a read that takes longer has waited: to copy 128 KiB takes some 0.03 ms


@dataclass(frozen=True, slots=True)
class StageTime:
    """What a stage took, on all threads together.

    Attributes:
        busy_seconds: of work, with the time that the threads were kept from running.
        cpu_seconds: of a processor.
    """

    busy_seconds: float
    cpu_seconds: float


class PullTimer:
    """The time of one pull.

    Args:
        trace: gets the timeline, too.

    Attributes:
        image: what is done once for all layers.
        loop_cpu_seconds: that the event loop's own thread computed; nearly all of it is downloading.
    """

    def __init__(self, trace: Trace | None = None) -> None:
        self._trace = trace
        self._lock = threading.Lock()
        self._layers: dict[int, TimingScope] = {}
        self.loop_cpu_seconds = 0.0
        self.image = self._add_part("image")

    def layer(self, number: int, title: str = "") -> TimingScope:
        """A layer of the image.

        Args:
            number: of the layer, 0 for the base.
            title: what is to be shown, from whoever asks first.
        """
        with self._lock:
            part = self._layers.get(number)
            if part is None:
                part = self._layers[number] = self._add_part(title or f"layer {number + 1}")
            return part

    def stages(self) -> dict[Stage, StageTime]:
        """What was spent, for each stage that there was."""
        lanes, found = self._lanes(), {}
        for stage in Stage:
            used = [lane for lane in lanes if lane.stage is stage and lane.is_used]
            if used:
                cpu = self.loop_cpu_seconds if stage is Stage.DOWNLOAD else 0.0
                cpu += sum(lane.cpu_seconds for lane in used)
                found[stage] = StageTime(sum(lane.busy_seconds for lane in used), cpu)
        return found

    def waits(self) -> dict[Wait, float]:
        """Seconds for each thing that was waited for, by all together."""
        found: dict[Wait, float] = {}
        for lane in self._lanes():
            for wait, seconds in lane.waits.items():
                found[wait] = found.get(wait, 0.0) + seconds
        return found

    def _lanes(self) -> list[Lane]:
        with self._lock:
            parts = [self.image, *self._layers.values()]
        return [lane for part in parts for lane in part.lanes]

    def _add_part(self, title: str) -> TimingScope:
        return TimingScope(None if self._trace is None else self._trace.add_group(title))


class TimingScope:
    """A layer, or the image as a whole; threads may share it.

    Args:
        group: of the trace, if there is one.

    Attributes:
        lanes: as many for each stage as were used at once.
    """

    def __init__(self, group: TrackGroup | None) -> None:
        self.lanes: list[Lane] = []
        self._group = group
        self._lock = threading.Lock()
        self._free: dict[Stage, list[Lane]] = {}
        self._watch: LayerTimer | None = None

    @contextmanager
    def lane(self, stage: Stage) -> Iterator[Lane]:
        """A lane of nobody else's."""
        lane = self.take(stage)
        try:
            yield lane
        finally:
            self.give(lane)

    def take(self, stage: Stage) -> Lane:
        """A lane of nobody else's, to be given back."""
        with self._lock:
            free = self._free.setdefault(stage, [])
            if free:
                return free.pop()
            lane = Lane(stage, None if self._group is None else self._group.add_lane(stage))
            self.lanes.append(lane)
            return lane

    def give(self, lane: Lane) -> None:
        """Gives a lane back."""
        with self._lock:
            self._free[lane.stage].append(lane)

    def at(self, stage: Stage) -> TimedBlock:
        """A context that counts as work of the current thread; for what takes at least some 100 µs."""
        return TimedBlock(self, stage)

    @contextmanager
    def watch(self, *, hashes: bool = False) -> Iterator[LayerTimer]:
        """Counts the context as the work of the layer's own thread, which has one at a time.

        Args:
            hashes: whether that thread hashes what it inflates, and does not wait for another one to do it.
        """
        with ExitStack() as stack:
            stages = (Stage.READ, Stage.INFLATE, Stage.WRITE, *((Stage.HASH,) if hashes else ()))
            lanes = [stack.enter_context(self.lane(stage)) for stage in stages]
            self._watch = watch = LayerTimer(lanes, clock(), time.thread_time())
            try:
                yield watch
            finally:
                self._watch = None
                watch.flush(clock())

    def waited(self, start: float, stop: float) -> None:
        """Says that the layer's own thread waited for the compressors while it wrote."""
        if self._watch is not None:
            self._watch.waited(start, stop)


class TimedBlock:
    """A context that is work: a class, since it takes 2 µs, where a generator takes 5.

    Args:
        part: whose work.
        stage: what is done.
    """

    __slots__ = ("_began", "_cpu", "_lane", "_part", "_stage")

    def __init__(self, part: TimingScope, stage: Stage) -> None:
        self._part = part
        self._stage = stage

    def __enter__(self) -> None:
        self._lane = self._part.take(self._stage)
        self._began, self._cpu = clock(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        cpu = time.thread_time() - self._cpu
        self._lane.work(self._began, clock(), cpu_seconds=cpu)
        self._part.give(self._lane)


@contextmanager
def waiting(lane: Lane, wait: Wait) -> Iterator[None]:
    """Counts the context as waiting, also one that is cancelled."""
    began = clock()
    try:
        yield
    finally:
        lane.wait(began, clock(), wait)


class LayerTimer:
    """The time of a layer's own thread, which reads, inflates, scans and writes in turn.

    Args:
        lanes: for reading, inflating and writing; and for hashing, where the thread does that itself: without it, what
            hashing takes is waiting.
        now: by the clock.
        cpu: of the thread so far, in seconds.
    """

    def __init__(self, lanes: Sequence[Lane], now: float, cpu: float) -> None:
        self._lanes = lanes
        self._hashes = len(lanes) > _WITHOUT_HASH
        self._begun = self._last = now
        self._cpu = cpu
        self._inside = 0.0  # of the step at hand, what others have told: it is not what the step seems to be
        self._inside_write = 0.0
        self._reset()

    def read(self, start: float, got: float, stop: float, *, may_wait: bool) -> None:
        """Says that bytes were asked for, were there, and were hashed; to be told within a step, before it.

        Args:
            start: when they were asked for.
            got: when they were there.
            stop: when they were hashed.
            may_wait: whether bytes may have had to come.
        """
        self._inside += stop - start
        if may_wait and got - start > _COPY_SECONDS:
            if got - start > GRAIN_SECONDS:
                self._cut(0, start, got, Wait.BYTES)
            else:
                self._bytes += got - start
            self._read += stop - got
        else:
            self._read += stop - start
        if stop - self._begun >= GRAIN_SECONDS:
            self.flush(stop)

    def waited(self, start: float, stop: float) -> None:
        """Says that the writer waited for the compressors; likewise."""
        self._inside_write += stop - start
        if stop - start > GRAIN_SECONDS:
            self._cut(2, start, stop, Wait.COMPRESS)
        else:
            self._compress += stop - start

    def step(self, inflated: float, handed: float, written: float) -> None:
        """Says when a chunk was inflated, hashed or handed to be hashed, and scanned and written."""
        self._inflate += inflated - self._last - self._inside
        self._hash += handed - inflated
        self._write += written - handed - self._inside_write
        self._inside = self._inside_write = 0.0
        self._last = written
        if written - self._begun >= GRAIN_SECONDS:
            self.flush(written)

    def flush(self, now: float) -> None:
        """Tells the lanes. What the processor did is shared among the stages as the work was."""
        cpu = time.thread_time()
        works = [self._read, self._inflate, self._write]
        waits = [(self._bytes, Wait.BYTES), (self._hash, Wait.HASH), (self._compress, Wait.COMPRESS)]
        if self._hashes:
            works.append(self._hash)
            waits[1] = (0.0, Wait.NOTHING)
            waits.append((0.0, Wait.NOTHING))
        share = (cpu - self._cpu) / (sum(works) or 1.0)
        for lane, work, (waited, wait) in zip(self._lanes, works, waits, strict=True):
            if work or waited:
                lane.add(Span(self._begun, now, work, work * share, waited, wait if waited else Wait.NOTHING))
        self._begun, self._cpu = now, cpu
        self._reset()

    def _cut(self, lane: int, start: float, stop: float, wait: Wait) -> None:
        """A long wait is a span of its own."""
        self.flush(start)
        self._lanes[lane].wait(start, stop, wait)
        self._begun = stop

    def _reset(self) -> None:
        self._read = self._inflate = self._write = 0.0
        self._bytes = self._hash = self._compress = 0.0
