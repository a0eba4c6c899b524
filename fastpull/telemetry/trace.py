"""Traces: a timeline of a pull, for Perfetto and chrome://tracing.

::

    Trace ── TrackGroup (the image, or a layer) ── Lane (one activity at a time) ── spans, joined into slices

A pull produces thousands of spans a second. Spans that are close together become one slice, which records how much
of it was work and how much was waiting. A lane with too many slices joins neighbours, so that it
never takes more than 60 KB. Nothing here reads a clock.

Spec: Trace Event Format (Google, 2016), JSON Object Format, Complete Events and Metadata Events.
"""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

GRAIN_SECONDS = 0.02
"""Spans within this time become one slice."""

MAX_SLICES = 1024
"""Maximum slices of a lane; beyond, its grain becomes coarser."""


class Stage(StrEnum):
    """A stage of a pull."""

    RESOLVE = "resolving"
    DOWNLOAD = "downloading"
    STORE = "storing"
    READ = "reading and verifying"
    INFLATE = "inflating"
    HASH = "hashing"
    WRITE = "scanning and writing"
    COMPRESS = "compressing"
    APPEND = "storing blocks"
    MERGE = "merging"
    PLAN = "planning"
    GATHER = "closing gaps"
    COPY = "copying blocks"
    METADATA = "making metadata"
    COMMIT = "finishing the output"
    PUBLISH = "publishing"


class Wait(StrEnum):
    """What a lane waits for."""

    NOTHING = ""
    BYTES = "waiting for bytes"
    HASH = "waiting for the hash"
    COMPRESS = "waiting for the compressors"
    COPY = "waiting for the copy"
    TURN = "waiting for a thread"
    CONNECTION = "waiting for a connection"
    ANSWER = "waiting for the answer"
    OTHERS = "waiting for a download of another process"


@dataclass(frozen=True, slots=True)
class Span:
    """A period in which a lane worked, waited, or alternated between both.

    Attributes:
        start, stop: start and end, in seconds of any clock; all spans of a trace use the same clock.
        busy_seconds: seconds of work.
        cpu_seconds: processor seconds of the work; less than `busy_seconds` if the thread was not scheduled.
        waited_seconds: seconds of waiting.
        wait: the main reason for waiting.
        size: bytes transferred, if counted.
    """

    start: float
    stop: float
    busy_seconds: float = 0.0
    cpu_seconds: float = 0.0
    waited_seconds: float = 0.0
    wait: Wait = Wait.NOTHING
    size: int = 0

    def joined(self, later: Span) -> Span:
        """Return this span and a later one as one span."""
        longer = later if later.waited_seconds > self.waited_seconds else self
        return Span(
            self.start,
            later.stop,
            self.busy_seconds + later.busy_seconds,
            self.cpu_seconds + later.cpu_seconds,
            self.waited_seconds + later.waited_seconds,
            longer.wait,
            self.size + later.size,
        )


_WAITS = list(Wait)
_WIDTH = 7


class Slices:
    """The spans of a lane, joined into a limited number of slices.

    Args:
        grain_seconds: spans within this time become one slice.
        max_slices: maximum number of slices.
    """

    def __init__(self, grain_seconds: float = GRAIN_SECONDS, max_slices: int = MAX_SLICES) -> None:
        self._grain = grain_seconds
        self._max = max_slices
        self._closed = array("d")  # 56 bytes a slice, where objects would take 250
        self._last: Span | None = None

    def add(self, span: Span) -> None:
        """Add a span; it must begin at or after the end of the previous one."""
        last = self._last
        if last is not None and span.stop - last.start <= self._grain:
            self._last = last.joined(span)
            return
        if last is not None:
            self._close(last)
        self._last = span
        if len(self._closed) >= (self._max - 1) * _WIDTH:
            self._coarsen()

    def __iter__(self) -> Iterator[Span]:
        for at in range(0, len(self._closed), _WIDTH):
            start, stop, busy, cpu, waited, wait, size = self._closed[at : at + _WIDTH]
            yield Span(start, stop, busy, cpu, waited, _WAITS[int(wait)], int(size))
        if self._last is not None:
            yield self._last

    def _close(self, span: Span) -> None:
        self._closed.extend(
            (
                span.start,
                span.stop,
                span.busy_seconds,
                span.cpu_seconds,
                span.waited_seconds,
                _WAITS.index(span.wait),
                span.size,
            )
        )

    def _coarsen(self) -> None:
        spans = list(self)
        while len(spans) > self._max // 2:
            self._grain *= 2
            spans = list(_joined(spans, self._grain))
        self._closed, self._last = array("d"), spans.pop()
        for span in spans:
            self._close(span)


def _joined(spans: Iterable[Span], grain: float) -> Iterator[Span]:
    held: Span | None = None
    for span in spans:
        if held is not None and span.stop - held.start <= grain:
            held = held.joined(span)
            continue
        if held is not None:
            yield held
        held = span
    if held is not None:
        yield held


class Lane:
    """A sequence of spans of one stage, used by one thread at a time. Slices are kept only for a trace.

    Attributes:
        stage: the stage.
        is_used: whether the lane has any span.
        busy_seconds, cpu_seconds: sums over all spans.
        waits: seconds of waiting, by reason.
    """

    def __init__(self, stage: Stage, slices: Slices | None = None) -> None:
        self.stage = stage
        self.is_used = False
        self.busy_seconds = self.cpu_seconds = 0.0
        self.waits: dict[Wait, float] = {}
        self._stop = float("-inf")
        self._slices = slices

    def add(self, span: Span) -> None:
        """Add a span; a span that overlaps the previous one is shortened."""
        if span.start < self._stop:
            span = replace(span, start=self._stop, stop=max(span.stop, self._stop))
        self._stop, self.is_used = span.stop, True
        self.busy_seconds += span.busy_seconds
        self.cpu_seconds += span.cpu_seconds
        if span.waited_seconds:
            self.waits[span.wait] = self.waits.get(span.wait, 0.0) + span.waited_seconds
        if self._slices is not None:
            self._slices.add(span)

    def work(self, start: float, stop: float, *, cpu_seconds: float = 0.0, size: int = 0) -> None:
        """Add a span of work."""
        self.add(Span(start, stop, stop - start, cpu_seconds, size=size))

    def wait(self, start: float, stop: float, wait: Wait) -> None:
        """Add a span of waiting, without the part that overlaps the previous span."""
        start = max(start, self._stop)
        if stop > start:
            self.add(Span(start, stop, waited_seconds=stop - start, wait=wait))


class TrackGroup:
    """A group of lanes; threads may share it.

    Args:
        name: title of the group.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lanes: list[tuple[Stage, Slices]] = []
        self._lock = threading.Lock()

    def add_lane(self, stage: Stage) -> Slices:
        """Add a lane; return its slices."""
        slices = Slices()
        with self._lock:
            self._lanes.append((stage, slices))
        return slices

    def lanes(self) -> list[tuple[Stage, Slices]]:
        """Return the stage and the slices of each lane, in the order of the stages."""
        order = list(Stage)
        with self._lock:
            return sorted(self._lanes, key=lambda lane: order.index(lane[0]))


class Trace:
    """A timeline that `Client.pull` fills; consecutive pulls may share one.

    It contains digests, sizes and times, but no names, addresses or credentials. `TraceFile` writes it to a file.
    """

    def __init__(self) -> None:
        self._groups: list[TrackGroup] = []
        self._lock = threading.Lock()

    def add_group(self, name: str) -> TrackGroup:
        """Add a group of lanes."""
        group = TrackGroup(name)
        with self._lock:
            self._groups.append(group)
        return group

    def document(self) -> dict[str, Any]:
        """Return the trace as JSON values, with times in microseconds since the first span.

        The name of a slice is its stage, or its reason for waiting if it waited more than half of its time. Its
        arguments are shares of its time: work, processor time, waiting. Call this after the pull.
        """
        with self._lock:
            groups = [
                (group.name, [(stage, list(slices)) for stage, slices in group.lanes()]) for group in self._groups
            ]
        starts = [span.start for _, lanes in groups for _, spans in lanes for span in spans]
        origin = min(starts, default=0.0)
        events: list[dict[str, Any]] = []
        for pid, (name, lanes) in enumerate(groups, 1):
            events += _named("process", pid, 0, name, pid)
            counts: Counter[Stage] = Counter()
            for tid, (stage, spans) in enumerate(lanes, 1):
                counts[stage] += 1
                title = str(stage) if counts[stage] == 1 else f"{stage} {counts[stage]}"
                events += _named("thread", pid, tid, title, tid)
                events += [{**_event(span, stage, origin), "pid": pid, "tid": tid} for span in spans]
        return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(kind: str, pid: int, tid: int, name: str, place: int) -> list[dict[str, Any]]:
    """Return metadata events with the title and the position of a process or thread."""
    common = {"ph": "M", "pid": pid, "tid": tid}
    return [
        {**common, "name": f"{kind}_name", "args": {"name": name}},
        {**common, "name": f"{kind}_sort_index", "args": {"sort_index": place}},
    ]


def _event(span: Span, stage: str, origin: float) -> dict[str, Any]:
    # round both ends, not the length, so that adjacent slices do not overlap
    start, stop = (round((at - origin) * 1e6) for at in (span.start, span.stop))
    length = max(span.stop - span.start, 1e-9)
    waits = span.waited_seconds > span.busy_seconds
    seconds = {"busy": span.busy_seconds, "cpu": span.cpu_seconds, "waiting": span.waited_seconds}
    args: dict[str, Any] = {name: round(min(1.0, value / length), 3) for name, value in seconds.items() if value}
    if span.waited_seconds:
        args["for"] = str(span.wait)
    if span.size:
        args["bytes"] = span.size
    return {
        "ph": "X",
        "name": str(span.wait) if waits else stage,
        "cat": "wait" if waits else "work",
        "ts": start,
        "dur": stop - start,
        "args": args,
    }
