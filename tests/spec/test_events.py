"""Exceptions of a listener end the work, and reach the caller."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fastpull
from fastpull.config.settings import Settings
from fastpull.telemetry.events import Committing, Event, LayerDone, LayerProgress, Resolved
from tests.support.layers import file, publish
from tests.support.registry import FaultyRegistry, slow


@pytest.mark.parametrize("kind", [Resolved, LayerProgress, LayerDone, Committing])
async def test_an_exception_of_the_listener_reaches_the_caller_of_pull(
    kind: type[Event], registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, kind):
            raise LookupError("listener")  # noqa: TRY004

    image = publish(registry, [file("data", os.urandom(300_000))])
    registry.faults.append(slow(500_000))
    with pytest.raises(LookupError, match="listener"):
        async with fastpull.Client(settings, on_event=on_event) as client:
            await client.pull(image, fastpull.Directory(tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith((".out", "out"))] == []


@pytest.mark.parametrize("kind", [LayerProgress, LayerDone])
async def test_an_exception_of_the_listener_reaches_the_caller_of_warm(
    kind: type[Event], registry: FaultyRegistry, settings: Settings
) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, kind):
            raise LookupError("listener")  # noqa: TRY004

    image = publish(registry, [file("data", os.urandom(300_000))])
    registry.faults.append(slow(500_000))
    with pytest.raises(LookupError, match="listener"):
        async with fastpull.Client(settings, on_event=on_event) as client:
            await client.warm([image])
