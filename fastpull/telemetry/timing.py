"""Timing: how long each stage of a pull takes and, for a trace, when.

Seconds are always counted, because this costs one reading of the clock per chunk. The thread of a layer alternates
between several stages: its `LayerTimer` records each chunk, and updates the lanes every 20 ms. All other stages are
timed per batch, range or phase, with `TimingScope.timed`.
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

_WITHOUT_HASH = 3  # lanes of a timer whose thread does not hash
_COPY_SECONDS = 0.001  # a longer read has waited for bytes; copying 128 KiB takes about 0.03 ms


@dataclass(frozen=True, slots=True)
class StageTime:
    """The time of a stage, on all threads together.

    Attributes:
        busy_seconds: seconds of work, including time in which the threads were not scheduled.
        cpu_seconds: processor seconds.
    """

    busy_seconds: float
    cpu_seconds: float


class PullTimer:
    """Measures one pull.

    Args:
        trace: receives the timeline.

    Attributes:
        image: scope of the stages that run once for all layers.
        loop_cpu_seconds: processor seconds of the event loop's thread; nearly all of it is downloading.
    """

    def __init__(self, trace: Trace | None = None) -> None:
        self._trace = trace
        self._lock = threading.Lock()
        self._layers: dict[int, TimingScope] = {}
        self.loop_cpu_seconds = 0.0
        self.image = self._add_scope("image")

    def layer(self, number: int, title: str = "") -> TimingScope:
        """Return the scope of a layer.

        Args:
            number: number of the layer; 0 is the base.
            title: title in the trace; the first call decides.
        """
        with self._lock:
            scope = self._layers.get(number)
            if scope is None:
                scope = self._layers[number] = self._add_scope(title or f"layer {number + 1}")
            return scope

    def stages(self) -> dict[Stage, StageTime]:
        """Return the time of each stage that took place."""
        lanes, found = self._lanes(), {}
        for stage in Stage:
            used = [lane for lane in lanes if lane.stage is stage and lane.is_used]
            if used:
                cpu = self.loop_cpu_seconds if stage is Stage.DOWNLOAD else 0.0
                cpu += sum(lane.cpu_seconds for lane in used)
                found[stage] = StageTime(sum(lane.busy_seconds for lane in used), cpu)
        return found

    def waits(self) -> dict[Wait, float]:
        """Return the seconds of waiting on all threads, by reason."""
        found: dict[Wait, float] = {}
        for lane in self._lanes():
            for wait, seconds in lane.waits.items():
                found[wait] = found.get(wait, 0.0) + seconds
        return found

    def _lanes(self) -> list[Lane]:
        with self._lock:
            scopes = [self.image, *self._layers.values()]
        return [lane for scope in scopes for lane in scope.lanes]

    def _add_scope(self, title: str) -> TimingScope:
        return TimingScope(None if self._trace is None else self._trace.add_group(title))


class TimingScope:
    """Measures a layer, or the image as a whole; threads may share it.

    Args:
        group: group of the trace; None without a trace.

    Attributes:
        lanes: for each stage as many lanes as were in use at once.
    """

    def __init__(self, group: TrackGroup | None) -> None:
        self.lanes: list[Lane] = []
        self._group = group
        self._lock = threading.Lock()
        self._free: dict[Stage, list[Lane]] = {}
        self._timer: LayerTimer | None = None

    @contextmanager
    def lane(self, stage: Stage) -> Iterator[Lane]:
        """Use a lane exclusively while the context lasts."""
        lane = self.take(stage)
        try:
            yield lane
        finally:
            self.give(lane)

    def take(self, stage: Stage) -> Lane:
        """Return a lane for exclusive use; pass it to `give` afterwards."""
        with self._lock:
            free = self._free.setdefault(stage, [])
            if free:
                return free.pop()
            lane = Lane(stage, None if self._group is None else self._group.add_lane(stage))
            self.lanes.append(lane)
            return lane

    def give(self, lane: Lane) -> None:
        """Return a lane for reuse."""
        with self._lock:
            self._free[lane.stage].append(lane)

    def timed(self, stage: Stage) -> TimedBlock:
        """Return a context whose body is timed as work of this thread; for work of 100 µs or more."""
        return TimedBlock(self, stage)

    @contextmanager
    def layer_timer(self, *, hashes: bool = False) -> Iterator[LayerTimer]:
        """Time the body as work of the layer's thread; a scope has one such context at a time.

        Args:
            hashes: whether that thread hashes inflated bytes itself, and does not wait for another thread to do so.
        """
        with ExitStack() as stack:
            stages = (Stage.READ, Stage.INFLATE, Stage.WRITE, *((Stage.HASH,) if hashes else ()))
            lanes = [stack.enter_context(self.lane(stage)) for stage in stages]
            self._timer = timer = LayerTimer(lanes, clock(), time.thread_time())
            try:
                yield timer
            finally:
                self._timer = None
                timer.flush(clock())

    def waited(self, start: float, stop: float) -> None:
        """Record that the thread of the layer waited for compressors while it wrote."""
        if self._timer is not None:
            self._timer.waited(start, stop)


class TimedBlock:
    """A timed context. It is a class because that takes 2 µs, and a generator 5.

    Args:
        scope: the scope of the work.
        stage: the stage.
    """

    __slots__ = ("_began", "_cpu", "_lane", "_scope", "_stage")

    def __init__(self, scope: TimingScope, stage: Stage) -> None:
        self._scope = scope
        self._stage = stage

    def __enter__(self) -> None:
        self._lane = self._scope.take(self._stage)
        self._began, self._cpu = clock(), time.thread_time()

    def __exit__(self, *_: object) -> None:
        cpu = time.thread_time() - self._cpu
        self._lane.work(self._began, clock(), cpu_seconds=cpu)
        self._scope.give(self._lane)


@contextmanager
def waiting(lane: Lane, wait: Wait) -> Iterator[None]:
    """Record the body as waiting, also if it is cancelled."""
    began = clock()
    try:
        yield
    finally:
        lane.wait(began, clock(), wait)


class LayerTimer:
    """Measures the thread of a layer, which reads, inflates, scans and writes in turn.

    Args:
        lanes: lanes for reading, inflating and writing; and a fourth for hashing if the thread hashes itself. Without
            it, the time between inflating and scanning is waiting.
        now: the current time.
        cpu: processor seconds of the thread so far.
    """

    def __init__(self, lanes: Sequence[Lane], now: float, cpu: float) -> None:
        self._lanes = lanes
        self._hashes = len(lanes) > _WITHOUT_HASH
        self._begun = self._last = now
        self._cpu = cpu
        self._inside = 0.0  # time of the current step that `read` has recorded already
        self._inside_write = 0.0
        self._reset()

    def read(self, start: float, got: float, stop: float, *, may_wait: bool) -> None:
        """Record a read of compressed bytes; call it before the `step` that it is part of.

        Args:
            start: time of the request.
            got: time when the bytes were available.
            stop: time when the bytes were hashed.
            may_wait: whether the read may have waited for a download.
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
        """Record a wait of the writer for compressors; call it before the `step` that it is part of."""
        self._inside_write += stop - start
        if stop - start > GRAIN_SECONDS:
            self._cut(2, start, stop, Wait.COMPRESS)
        else:
            self._compress += stop - start

    def step(self, inflated: float, handed: float, written: float) -> None:
        """Record when a chunk was inflated, hashed or handed over, and scanned and written."""
        self._inflate += inflated - self._last - self._inside
        self._hash += handed - inflated
        self._write += written - handed - self._inside_write
        self._inside = self._inside_write = 0.0
        self._last = written
        if written - self._begun >= GRAIN_SECONDS:
            self.flush(written)

    def flush(self, now: float) -> None:
        """Update the lanes. Processor time is divided among the stages in proportion to their work."""
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
        """Record a long wait as a separate span."""
        self.flush(start)
        self._lanes[lane].wait(start, stop, wait)
        self._begun = stop

    def _reset(self) -> None:
        self._read = self._inflate = self._write = 0.0
        self._bytes = self._hash = self._compress = 0.0
