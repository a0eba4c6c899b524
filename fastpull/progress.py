"""The events of a pull, for programs: see `fastpull.telemetry.events`."""

from __future__ import annotations

from fastpull.telemetry.events import (
    NOTICED_SECONDS,
    Committing,
    Copying,
    Event,
    LayerDone,
    LayerProgress,
    NodeDone,
    NodeProgress,
    OnEvent,
    Resolved,
    Retrying,
    Unchanged,
    Waiting,
    WaitingForImage,
    Warned,
    ignore,
)

__all__ = [
    "NOTICED_SECONDS",
    "Committing",
    "Copying",
    "Event",
    "LayerDone",
    "LayerProgress",
    "NodeDone",
    "NodeProgress",
    "OnEvent",
    "Resolved",
    "Retrying",
    "Unchanged",
    "Waiting",
    "WaitingForImage",
    "Warned",
    "ignore",
]
