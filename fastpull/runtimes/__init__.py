"""Runtime profiles: what container runtimes need in a root filesystem, or beside it. Profiles do no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull._lazy import lazy_face

if TYPE_CHECKING:
    from fastpull.runtimes.base import AddedDirectory, AddedFile, Additions, OutputShape, RuntimeProfile
    from fastpull.runtimes.choose import RUNTIMES
    from fastpull.runtimes.edf import EnvironmentFile
    from fastpull.runtimes.enroot_command import EnrootSettings, EnrootUri

__all__ = [
    "RUNTIMES",
    "AddedDirectory",
    "AddedFile",
    "Additions",
    "EnrootSettings",
    "EnrootUri",
    "EnvironmentFile",
    "OutputShape",
    "RuntimeProfile",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_face(
        __name__,
        {
            "fastpull.runtimes.base": (
                "Additions",
                "AddedFile",
                "AddedDirectory",
                "OutputShape",
                "RuntimeProfile",
            ),
            "fastpull.runtimes.choose": ("RUNTIMES",),
            "fastpull.runtimes.edf": ("EnvironmentFile",),
            "fastpull.runtimes.enroot_command": (
                "EnrootSettings",
                "EnrootUri",
            ),
        },
    )
