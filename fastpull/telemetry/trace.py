"""Traces: what a pull did when, as a timeline that Perfetto and chrome://tracing show.

::

    Trace ── Group (the image, or a layer of it) ── Lane (one thing at a time) ── spans, joined into slices

Spans come by the thousand a second. Those that are close together become one slice, which says how much of it was work
and how much was waiting; where a lane gets too many slices, neighbours are joined, too. So a lane never takes more than
60 KB, however long the pull. Nothing here looks at a clock.

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
"""Spans that lie within so much time are one slice."""

MAX_SLICES = 1024
"""That a lane has at most; beyond, its grain becomes coarser."""


class Stage(StrEnum):
    """What is done."""

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
    """What is waited for."""

    NOTHING = ""
    BYTES = "waiting for bytes"
    HASH = "waiting for the hash"
    COMPRESS = "waiting for the compressors"
    COPY = "waiting for the copy"
    TURN = "waiting for a turn"
    CONNECTION = "waiting for a connection"
    ANSWER = "waiting for the answer"
    OTHERS = "waiting for somebody else's download"


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which a lane worked, waited, or did both in turn.

    Attributes:
        start, stop: in seconds of any clock, the same for all spans of a trace.
        busy_seconds: of work.
        cpu_seconds: of a processor that the work took; less than the work where the thread was kept from running.
        waited_seconds: of waiting.
        wait: for what most of it was.
        size: bytes that came or went, where that is counted.
    """

    start: float
    stop: float
    busy_seconds: float = 0.0
    cpu_seconds: float = 0.0
    waited_seconds: float = 0.0
    wait: Wait = Wait.NOTHING
    size: int = 0

    def joined(self, later: Span) -> Span:
        """One span of two."""
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
    """The spans of a lane, in few pieces.

    Args:
        grain_seconds: what lies within so much time is one slice.
        max_slices: there are never more.
    """

    def __init__(self, grain_seconds: float = GRAIN_SECONDS, max_slices: int = MAX_SLICES) -> None:
        self._grain = grain_seconds
        self._max = max_slices
        self._closed = array("d")  # 56 bytes a slice, where objects would take 250
        self._last: Span | None = None

    def add(self, span: Span) -> None:
        """Adds a span, which begins where the one before ends, or later."""
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
    """Where one thing happens at a time. Used by one thread at a time; totals are always kept, slices in a trace only.

    Attributes:
        stage: what is done.
        is_used: whether there was any span.
        busy_seconds, cpu_seconds: of all spans.
        waits: seconds for each thing that was waited for.
    """

    def __init__(self, stage: Stage, slices: Slices | None = None) -> None:
        self.stage = stage
        self.is_used = False
        self.busy_seconds = self.cpu_seconds = 0.0
        self.waits: dict[Wait, float] = {}
        self._stop = float("-inf")
        self._slices = slices

    def add(self, span: Span) -> None:
        """Adds a span; one that began while the lane did something else counts from there."""
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
        """Adds a span of nothing but work."""
        self.add(Span(start, stop, stop - start, cpu_seconds, size=size))

    def wait(self, start: float, stop: float, wait: Wait) -> None:
        """Adds a span of nothing but waiting; of one that began while the lane did something else, the rest."""
        start = max(start, self._stop)
        if stop > start:
            self.add(Span(start, stop, waited_seconds=stop - start, wait=wait))


class TrackGroup:
    """Lanes that belong together; threads may share it.

    Args:
        name: as it is shown.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lanes: list[tuple[Stage, Slices]] = []
        self._lock = threading.Lock()

    def add_lane(self, stage: Stage) -> Slices:
        """Adds a lane."""
        slices = Slices()
        with self._lock:
            self._lanes.append((stage, slices))
        return slices

    def lanes(self) -> list[tuple[Stage, Slices]]:
        """Stages and slices, in the order of the stages."""
        order = list(Stage)
        with self._lock:
            return sorted(self._lanes, key=lambda lane: order.index(lane[0]))


class Trace:
    """A timeline, given to `Client.pull` and filled by it; several pulls may share one, one after the other.

    It holds digests, sizes and times, and neither names nor addresses nor credentials. `TraceFile` writes it.
    """

    def __init__(self) -> None:
        self._groups: list[TrackGroup] = []
        self._lock = threading.Lock()

    def add_group(self, name: str) -> TrackGroup:
        """Adds a group of lanes."""
        group = TrackGroup(name)
        with self._lock:
            self._groups.append(group)
        return group

    def document(self) -> dict[str, Any]:
        """The trace as JSON has it; times are in microseconds since the first span.

        A slice is called by its stage, or by what it waited for where that took more than half of it. Its arguments are
        the shares of its time that were work, a processor's work, and waiting. To be asked when nothing is at work.
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
    """Metadata events: how a process or thread is called, and where it is shown."""
    common = {"ph": "M", "pid": pid, "tid": tid}
    return [
        {**common, "name": f"{kind}_name", "args": {"name": name}},
        {**common, "name": f"{kind}_sort_index", "args": {"sort_index": place}},
    ]


def _event(span: Span, stage: str, origin: float) -> dict[str, Any]:
    # both ends are rounded, not the length: slices that touch do not overlap
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
