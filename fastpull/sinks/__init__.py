"""Sinks: the formats of outputs, and what a sink can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull._lazy import lazy_face

if TYPE_CHECKING:
    from fastpull.sinks.base import Sink, SinkReport
    from fastpull.sinks.choose import sink_for
    from fastpull.sinks.directory.sink import Directory
    from fastpull.sinks.squashfs.image.image_writer import SquashfsReport
    from fastpull.sinks.squashfs.recipe import Recipe
    from fastpull.sinks.squashfs.sink import Squashfs
    from fastpull.sinks.tar.sink import Tar
    from fastpull.sinks.trace_file import TraceFile

__all__ = [
    "Directory",
    "Recipe",
    "Sink",
    "SinkReport",
    "Squashfs",
    "SquashfsReport",
    "Tar",
    "TraceFile",
    "sink_for",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_face(
        __name__,
        {
            "fastpull.sinks.base": (
                "Sink",
                "SinkReport",
            ),
            "fastpull.sinks.choose": ("sink_for",),
            "fastpull.sinks.directory.sink": ("Directory",),
            "fastpull.sinks.squashfs.image.image_writer": ("SquashfsReport",),
            "fastpull.sinks.squashfs.recipe": ("Recipe",),
            "fastpull.sinks.squashfs.sink": ("Squashfs",),
            "fastpull.sinks.tar.sink": ("Tar",),
            "fastpull.sinks.trace_file": ("TraceFile",),
        },
    )
