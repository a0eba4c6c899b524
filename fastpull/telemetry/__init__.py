"""Events, timing and traces of a pull."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull._lazy import lazy_face

if TYPE_CHECKING:
    from fastpull.telemetry.bottleneck import Bottleneck
    from fastpull.telemetry.timing import StageTime
    from fastpull.telemetry.trace import Trace

__all__ = [
    "Bottleneck",
    "StageTime",
    "Trace",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_face(
        __name__,
        {
            "fastpull.telemetry.bottleneck": ("Bottleneck",),
            "fastpull.telemetry.timing": ("StageTime",),
            "fastpull.telemetry.trace": ("Trace",),
        },
    )
