"""The path of a byte: from the source through the layers into the sink. Start reading in ``pull.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull._lazy import lazy_face

if TYPE_CHECKING:
    from fastpull.pipeline.context import make_context
    from fastpull.pipeline.outputs import OutputTask, warm_source
    from fastpull.pipeline.report import PullReport
    from fastpull.pipeline.settings_check import check_settings

__all__ = [
    "OutputTask",
    "PullReport",
    "check_settings",
    "make_context",
    "warm_source",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_face(
        __name__,
        {
            "fastpull.pipeline.context": ("make_context",),
            "fastpull.pipeline.outputs": ("OutputTask", "warm_source"),
            "fastpull.pipeline.report": ("PullReport",),
            "fastpull.pipeline.settings_check": ("check_settings",),
        },
    )
