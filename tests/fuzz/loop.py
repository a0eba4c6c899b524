"""The fuzzing loop: keep inputs that reach new code, and mutate them."""

from __future__ import annotations

import ctypes
import os
import random
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from tests.fuzz import corpus
from tests.fuzz.build import LIBRARY, current_input
from tests.fuzz.mutations import mutated
from tests.fuzz.targets import TARGETS, FuzzTarget

SLOW_SECONDS = 1.0
"""Limit of processor time; an input of a few KiB that takes longer is a finding."""


_COMPARED = 16  # every n-th run is compared with the reference, besides those that reach new code


class Coverage(Protocol):
    """Detects runs that reach new code."""

    def run(self, check: Callable[[bytes], None], data: bytes) -> bool: ...


class NativeCoverage:
    """Edges between basic blocks of the native extension, from gcc's instrumentation."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(LIBRARY))
        self._begin, self._end = library.coverage_begin, library.coverage_end

    def run(self, check: Callable[[bytes], None], data: bytes) -> bool:
        self._begin()
        check(data)
        return bool(self._end())


class LineCoverage:
    """Edges between lines of given modules."""

    def __init__(self, files: tuple[str, ...]) -> None:
        self._files = files
        self._seen: set[tuple[object, int, int]] = set()
        self._found = False
        self._last = 0

    def run(self, check: Callable[[bytes], None], data: bytes) -> bool:
        self._found, self._last = False, 0
        sys.settrace(self._on_call)
        try:
            check(data)
        finally:
            sys.settrace(None)
        return self._found

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._on_line if frame.f_code.co_filename.endswith(self._files) else None

    def _on_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        step = frame.f_code, self._last, frame.f_lineno
        self._last = frame.f_lineno
        if step not in self._seen:
            self._seen.add(step)
            self._found = True
        return self._on_line


def _coverage(target: FuzzTarget) -> Coverage:
    return LineCoverage(target.traced) if target.traced else NativeCoverage()


def _keep(fd: int, data: bytes) -> None:
    """Write an input to an open file; opening it again would take as long as the run."""
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))


def fuzz(name: str, seed: int, seconds: float, keep: bool) -> str:
    """Fuzz a target for a time.

    Returns:
        A summary line.

    Raises:
        Exception: A finding; its input is in `build.current_input`.
    """
    target, choose = TARGETS[name], random.Random(seed)
    current = current_input(name, seed)
    place = os.open(current, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    coverage = _coverage(target)
    inputs, kept = corpus.read(name) or [b""], list[bytes]()
    began, runs, slowest = time.monotonic(), 0, 0.0

    def run(data: bytes) -> bool:
        nonlocal runs, slowest
        _keep(place, data)
        start = time.process_time()
        is_new = coverage.run(target.probe, data)
        taken = time.process_time() - start
        runs, slowest = runs + 1, max(slowest, taken)
        assert taken < SLOW_SECONDS, f"took {taken:.1f} s"
        if target.probe is not target.check and (is_new or runs % _COMPARED == 0):
            target.check(data)
        return is_new

    kept = [data for data in sorted(inputs, key=len) if run(data)] or [b""]
    known = len(kept)
    while time.monotonic() - began < seconds:
        data = mutated(name, kept, choose)
        if run(data):
            kept.append(data)
    if keep:
        coverage = _coverage(target) if target.traced else coverage
        corpus.write(name, _needed(target, kept) if target.traced else sorted(kept, key=len))
    os.close(place)
    current.unlink()
    return f"{name}: 0 findings / {runs} runs (seed {seed}), {len(kept) - known} new inputs, slowest {slowest:.2f} s"


def _needed(target: FuzzTarget, inputs: list[bytes]) -> list[bytes]:
    """Return the inputs by length, without those that reach no new code after shorter ones."""
    coverage = _coverage(target)
    return [data for data in sorted(inputs, key=len) if coverage.run(target.check, data)]
