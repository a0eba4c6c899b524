"""The path of a byte: from the source through the layers into the sink. Start reading in ``pull.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull._lazy import lazy_face

if TYPE_CHECKING:
    from fastpull.pipeline.context import make_context as make_context  # internal, loaded on first use
    from fastpull.pipeline.outputs import OutputTask as OutputTask
    from fastpull.pipeline.outputs import warm_source as warm_source
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
            "fastpull.pipeline.context": ("make_context",),
            "fastpull.pipeline.outputs": ("OutputTask", "warm_source"),
            "fastpull.pipeline.report": ("PullReport",),
            "fastpull.pipeline.settings_check": ("check_settings",),
        },
    )
