"""Metrics of commands for a site's monitoring: a text file in Prometheus' format.

A command ends before Prometheus could scrape it. It adds its counters to a file instead, which node_exporter's textfile
collector exposes. Names are those of `METRICS`. Labels hold the command, the user and the exit code, never an image.

Spec: Prometheus text-based exposition format 0.0.4.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from fastpull.cache.locking.file_lock import FileLock, pauses
from fastpull.concurrency.writes import pwrite_all
from fastpull.errors import CacheError, OutputError, from_os_error
from fastpull.telemetry.events import Event, LayerDone, OnEvent, Resolved, Retrying, Waiting, WaitingForImage, Warned

if TYPE_CHECKING:
    from fastpull.sinks.output.file_staging import FileStaging
    from fastpull.telemetry.timing import StageTime

METRICS: Mapping[str, tuple[Literal["counter", "gauge"], str]] = {
    "fastpull_runs_total": ("counter", "Commands that ended, by exit code: see docs/errors.md."),
    "fastpull_run_seconds_total": ("counter", "Running time of commands."),
    "fastpull_images_total": ("counter", "Resolved images."),
    "fastpull_downloaded_bytes_total": ("counter", "Compressed bytes of blobs that commands downloaded."),
    "fastpull_cached_bytes_total": (
        "counter",
        "Compressed bytes of blobs from the cache, or downloaded by other processes.",
    ),
    "fastpull_unpacked_bytes_total": ("counter", "Uncompressed bytes of unpacked layers."),
    "fastpull_waits_total": ("counter", "Waits for blobs and images of other processes."),
    "fastpull_retries_total": ("counter", "Repeated requests."),
    "fastpull_warnings_total": ("counter", "Warnings."),
    "fastpull_stage_seconds_total": ("counter", "Working time of all threads, by stage: see docs/tracing.md."),
    "fastpull_last_run_seconds": ("gauge", "Running time of the last command."),
    "fastpull_last_run_timestamp_seconds": ("gauge", "End of the last command."),
    "fastpull_last_success_timestamp_seconds": ("gauge", "End of the last command with exit code 0."),
}
"""Kind and help text of each metric; the names hold the units."""

_SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z]+="[A-Za-z0-9_. -]*",?)*)\} ([0-9.e+-]+)')
_MAX_SIZE = 1 << 20
_PATIENCE_SECONDS = 10.0


class Metrics:
    """The counters of one command, which are added to a file when it ends.

    Args:
        command: the command's name: ``pull``, ``warm``, ``importer``.
    """

    def __init__(self, command: str) -> None:
        self._labels = {"command": command, "uid": str(os.geteuid())}
        self._began = time.monotonic()
        self._counts: Counter[str] = Counter()
        self._stages: dict[str, float] = {}

    def beside(self, on_event: OnEvent) -> OnEvent:
        """Return a listener that counts events and passes them on."""

        def listen(event: Event) -> None:
            self._count(event)
            on_event(event)

        return listen

    def add_stages(self, stages: Mapping[str, StageTime]) -> None:
        """Add the stage times of a pull, from `PullReport.stages`."""
        for name, spent in stages.items():
            self._stages[name] = self._stages.get(name, 0.0) + spent.busy_seconds

    def check(self, path: str, keep_out: Sequence[str] = ()) -> None:
        """Check before the work that `write` can write the file.

        Args:
            path: as for `write`.
            keep_out: directories that must not contain the file.

        Raises:
            OutputError: the directory is missing, this user may not write to it, or the path is not a regular file.
        """
        with _prepared(self._file_at(path), keep_out):
            pass

    def write(self, path: str, exit_code: int) -> None:
        """Add the counters to a file. Readers see the old file or the new one.

        Args:
            path: the file; in a directory it is ``fastpull-UID.prom``, one for each user.
            exit_code: the command's exit code.

        Raises:
            OutputError: the file cannot be written.
        """
        path = self._file_at(path)
        try:
            with _prepared(path, ()) as staging, _locked(path):
                samples = _read(path)
                self._add_to(samples, exit_code)
                pwrite_all(staging.fd, 0, [_text(samples).encode()])
                os.fchmod(staging.fd, 0o644)  # the collector is another user
                staging.publish(sync=False)
        except CacheError as error:
            raise OutputError(path, error.reason, error.errno) from error
        except OSError as error:
            if isinstance(error, OutputError):
                raise
            raise from_os_error(OutputError, error, path) from error

    def _file_at(self, path: str) -> str:
        return os.path.join(path, f"fastpull-{self._labels['uid']}.prom") if os.path.isdir(path) else path

    def _count(self, event: Event) -> None:
        match event:
            case Resolved():
                self._counts["fastpull_images_total"] += 1
            case Waiting() | WaitingForImage():
                self._counts["fastpull_waits_total"] += 1
            case Retrying():
                self._counts["fastpull_retries_total"] += 1
            case Warned():
                self._counts["fastpull_warnings_total"] += 1
            case LayerDone():
                source = "cached" if event.was_cached else "downloaded"
                self._counts[f"fastpull_{source}_bytes_total"] += event.size
                self._counts["fastpull_unpacked_bytes_total"] += event.unpacked

    def _add_to(self, samples: dict[tuple[str, str], float], exit_code: int) -> None:
        labels, seconds, now = _labels(self._labels), time.monotonic() - self._began, time.time()

        def add(name: str, value: float, labels: str = labels) -> None:
            samples[name, labels] = samples.get((name, labels), 0.0) + value

        add("fastpull_runs_total", 1, _labels({**self._labels, "code": str(exit_code)}))
        add("fastpull_run_seconds_total", seconds)
        for name, (kind, _) in METRICS.items():
            if kind == "counter" and name not in ("fastpull_runs_total", "fastpull_stage_seconds_total"):
                add(name, self._counts[name])
        for stage, spent in self._stages.items():
            add("fastpull_stage_seconds_total", spent, _labels({**self._labels, "stage": stage}))
        samples["fastpull_last_run_seconds", labels] = seconds
        samples["fastpull_last_run_timestamp_seconds", labels] = now
        if exit_code == 0:
            samples["fastpull_last_success_timestamp_seconds", labels] = now


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))


def _text(samples: Mapping[tuple[str, str], float]) -> str:
    lines = []
    for name, (kind, text) in METRICS.items():
        found = {labels: value for (metric, labels), value in samples.items() if metric == name}
        if found:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{{{labels}}} {value:.17g}" for labels, value in sorted(found.items())]
    return "\n".join([*lines, ""])


def _read(path: str) -> dict[tuple[str, str], float]:
    """Return the samples of this user's file; lines that are not fastpull's are dropped."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return {}
    with open(fd, encoding="utf-8", errors="replace") as file:
        if os.fstat(fd).st_uid != os.geteuid():
            return {}
        found = (_SAMPLE.fullmatch(line) for line in file.read(_MAX_SIZE).splitlines())
    samples = {}
    for match in found:
        with contextlib.suppress(ValueError):
            if match and match[1] in METRICS and math.isfinite(value := float(match[3])):
                samples[match[1], match[2]] = value
    return samples


@contextlib.contextmanager
def _prepared(path: str, keep_out: Sequence[str]) -> Iterator[FileStaging]:
    """Stage the new file; remove the staging at the end of the context. A symbolic link is refused."""
    from fastpull.sinks.output.file_staging import FileStaging  # noqa: PLC0415  # few commands have metrics

    if os.path.islink(path):
        raise OutputError(path, "the metrics file is a symbolic link; name the file itself", errno.ELOOP)
    staging = FileStaging(path, force=True)
    try:
        staging.create(keep_out)
        yield staging
    finally:
        staging.remove()


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Lock the file against other processes. Raise OutputError if that takes too long."""
    lock, began = FileLock(f"{path}.lock"), time.monotonic()
    for pause in pauses():
        if lock.try_acquire():
            break
        if time.monotonic() - began > _PATIENCE_SECONDS:
            raise OutputError(path, "other processes keep this metrics file locked; try again")
        time.sleep(pause)
    try:
        yield
    finally:
        lock.release()
