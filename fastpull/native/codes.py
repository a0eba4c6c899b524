"""Codes that the native module and its callers share; the same numbers stand in ``native/*.pxi``."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class SpanFlag(IntFlag):
    """Whether a span is the first or the last of its file; one span may be both."""

    FIRST = 1
    LAST = 2


class Placement(IntEnum):
    """Where a `FileWriter` put the file of an entry."""

    NONE = 0
    PATH = 1
    SPOOL = 2


class CutResult(IntEnum):
    """The result of `BlockCutter.cut`."""

    DONE = 0
    FULL = 1
    TOO_LARGE = 2
    MEMORY = 3
