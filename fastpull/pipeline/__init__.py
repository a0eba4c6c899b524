"""The way of a byte: from the source through the layers into the sink. Start reading in ``pull.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull._lazy import lazy_face

if TYPE_CHECKING:
    from fastpull.pipeline.report import PullReport
    from fastpull.pipeline.settings_check import check_settings

__all__ = [
    "PullReport",
    "check_settings",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_face(
        __name__,
        {
            "fastpull.pipeline.report": ("PullReport",),
            "fastpull.pipeline.settings_check": ("check_settings",),
        },
    )
