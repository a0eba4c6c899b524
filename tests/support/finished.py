"""Pulls of a small image into squashfs files, for tests of finished images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fastpull
from fastpull.client import Client
from fastpull.config.settings import Settings
from fastpull.telemetry.events import Event, LayerDone
from tests.support.layers import file, folder, symlink

CONTENT = os.urandom(300_000)
LAYERS = ([file("a", CONTENT, mtime=5), folder("d"), symlink("d/l", "../a")], [file("b", b"b" * 5000)])


async def pull(
    reference: str, output: Path, settings: Settings, **options: Any
) -> tuple[fastpull.PullReport, list[Event]]:
    events: list[Event] = []
    async with Client(settings, on_event=events.append) as client:
        report = await client.pull(reference, fastpull.Squashfs(output, **options))
    return report, events


def origin(report: fastpull.PullReport) -> str:
    assert isinstance(report.output, fastpull.sinks.SquashfsReport)
    return report.output.origin


def was_unpacked(events: list[Event]) -> bool:
    return any(isinstance(event, LayerDone) for event in events)
