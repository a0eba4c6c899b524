"""The state behind a progress display: rows of bytes, their sum, and how fast it grows. No I/O and no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastpull.progress import Committing, Copying, LayerDone, LayerProgress, NodeDone, NodeProgress, Resolved

if TYPE_CHECKING:
    from fastpull.progress import Event

_WINDOW_SECONDS = 5.0
_SAMPLE_SECONDS = 0.1
_MIN_SECONDS = 0.5


class Rate:
    """Bytes a second over the last few seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._total = 0
        self._added_at = 0.0

    def add(self, now: float, amount: int) -> None:
        """Count bytes that came since the last call."""
        if not self._samples:
            self._samples.append((now, 0))
        if amount:
            self._total += amount
            self._added_at = now
        if now - self._samples[-1][0] >= _SAMPLE_SECONDS:
            self._samples.append((now, self._total))
        while len(self._samples) > 2 and now - self._samples[1][0] > _WINDOW_SECONDS:
            self._samples.popleft()

    def at(self, now: float) -> float:
        """Return the rate at a time; 0 while there is too little to tell."""
        while len(self._samples) > 1 and now - self._samples[1][0] > _WINDOW_SECONDS:
            self._samples.popleft()
        if now - self._added_at > _WINDOW_SECONDS or not self._samples or now - self._samples[0][0] < _MIN_SECONDS:
            return 0.0
        since, before = self._samples[0]
        return (self._total - before) / (now - since)


@dataclass(slots=True)
class ProgressRow:
    """Bytes of a layer, an image, a copy or a node.

    Attributes:
        name: shown first.
        size: in bytes, as they are stored.
        present: bytes on this machine, downloaded or cached.
        read: bytes that are verified, and unpacked where they are to be.
        state: a word that stays; empty while the row moves.
        is_done: nothing more will come, also if that is a failure.
        is_seen: an event has told how far it is.
    """

    name: str
    size: int
    present: int = 0
    read: int = 0
    state: str = ""
    is_done: bool = False
    is_seen: bool = False

    @property
    def is_active(self) -> bool:
        """Return whether work on the row has begun and not ended."""
        return not self.is_done and bool(self.present or self.read)

    @property
    def word(self) -> str:
        """Return the state in a word."""
        if self.state or self.is_done:
            return self.state or "done"
        if not self.is_active:
            return "waiting"
        return "downloading" if self.present < self.size else "unpacking"


@dataclass(slots=True)
class Total:
    """The sum of all rows at a time.

    Attributes:
        title: what the work is about.
        size, present, read: sums of the rows'.
        downloaded: bytes that came while they were looked at.
        rate: bytes a second, of the download while there is one, else of the reading.
        left_seconds: until all is read; None if that cannot be told.
        phase: what is done when all is read; empty before.
        verb: what is done with the bytes.
    """

    title: str
    size: int
    present: int
    read: int
    downloaded: int
    rate: float
    left_seconds: float | None
    phase: str
    verb: str


@dataclass(slots=True)
class _ImageProgress:
    rows: dict[str, ProgressRow] = field(default_factory=dict)
    phase: str = ""
    unpacks: bool = False


class Tracker:
    """Follows the events of a client.

    Args:
        shows_nodes: rows are the nodes of an MPI job, not layers.
    """

    def __init__(self, *, shows_nodes: bool = False) -> None:
        self._shows_nodes = shows_nodes
        self._images: dict[str, _ImageProgress] = {}
        self._downloaded = 0
        self._arriving = Rate()
        self._reading = Rate()

    def note(self, event: Event, now: float) -> None:
        """Take an event into account."""
        match event:
            case Resolved(image) if not self._shows_nodes:
                for layer in image.layers:
                    digest = layer.blob.digest
                    self._image(image.source).rows.setdefault(str(digest), ProgressRow(digest.short, layer.blob.size))
            case LayerProgress():
                row = self._row(event.source, str(event.digest), event.digest.short, event.size)
                self._image(event.source).unpacks |= event.unpacked > 0
                self._move(row, event.present, event.read, now)
            case LayerDone():
                row = self._row(event.source, str(event.digest), event.digest.short, event.size)
                if not event.was_cached and not row.is_seen:
                    self._count(event.size, now)  # too small to be seen on its way
                self._move(row, event.size, event.size, now)
                row.state, row.is_done = "was cached" if event.was_cached else "done", True
            case Copying():
                work = self._image(event.source)
                if "copy" not in work.rows:  # it is all that is left to do
                    work.rows, work.phase = {}, ""
                row = self._row(event.source, "copy", "copy from the cache", event.size)
                row.state = "copying"
                self._move(row, event.size, event.copied, now)
                row.is_done = event.copied >= event.size
            case NodeProgress():
                row = self._row(event.source, str(event.rank), node_name(event), event.size)
                self._move(row, event.read, event.read, now)
            case NodeDone():
                row = self._row(event.source, str(event.rank), node_name(event), 0)
                row.state, row.is_done = "failed" if event.error else "done", True
                if not event.error:
                    self._move(row, row.size, row.size, now)
            case Committing():
                self._image(event.source).phase = "finishing the output"

    def total(self, now: float) -> Total:
        """Return the sum of all rows."""
        rows = [row for image in self._images.values() for row in image.rows.values()]
        size, present, read = (sum(getattr(row, name) for row in rows) for name in ("size", "present", "read"))
        arriving, reading = self._arriving.at(now), self._reading.at(now)
        left = _left_seconds((size - present, arriving), (size - read, reading))
        phases = {image.phase for image in self._images.values()}
        return Total(
            self._title(),
            size,
            present,
            read,
            self._downloaded,
            arriving if present < size and arriving else reading,
            left,
            phases.pop() if len(phases) == 1 else "",
            self._verb(),
        )

    def rows(self) -> list[ProgressRow]:
        """Return what each line shows: the layers or nodes of one image; of several images each as one row."""
        if len(self._images) == 1:
            return [row for image in self._images.values() for row in image.rows.values()]
        found = []
        for source, image in self._images.items():
            rows = image.rows.values()
            row = ProgressRow(
                source, *(sum(getattr(one, name) for one in rows) for name in ("size", "present", "read"))
            )
            row.is_done = bool(rows) and all(one.is_done for one in rows)
            row.state = "" if row.is_done else image.phase
            found.append(row)
        return found

    def _title(self) -> str:
        if len(self._images) == 1:
            return next(iter(self._images))
        done = sum(row.is_done for row in self.rows())
        return f"{done} of {len(self._images)} images"

    def _verb(self) -> str:
        if self._shows_nodes:
            return "on the nodes"
        if any("copy" in image.rows for image in self._images.values()):
            return "copied"
        return "unpacked" if any(image.unpacks for image in self._images.values()) else "verified"

    def _image(self, source: str) -> _ImageProgress:
        return self._images.setdefault(source, _ImageProgress())

    def _row(self, source: str, key: str, name: str, size: int) -> ProgressRow:
        return self._image(source).rows.setdefault(key, ProgressRow(name, size))

    def _move(self, row: ProgressRow, present: int, read: int, now: float) -> None:
        if row.is_seen:  # what is there at the first look was not downloaded now
            self._count(max(0, present - row.present), now)
        self._reading.add(now, max(0, read - row.read))
        row.present, row.read, row.is_seen = present, read, True

    def _count(self, amount: int, now: float) -> None:
        self._downloaded += amount
        self._arriving.add(now, amount)


def node_name(event: NodeProgress | NodeDone) -> str:
    """Return the name of a node of an MPI job."""
    return f"rank {event.rank} on {event.host}"


def _left_seconds(*stages: tuple[int, float]) -> float | None:
    """Return the time that the slowest of stages takes, each with its bytes and its rate; None if no rate is known."""
    to_do = [(amount, rate) for amount, rate in stages if amount > 0]
    known = [amount / rate for amount, rate in to_do if rate > 0]
    return max(known, default=None) if to_do else 0.0
