"""The timeline of real pulls: what they did is in it, in lanes that make sense."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import fastpull
from fastpull.config.settings import Settings
from fastpull.errors import DigestMismatch, InvalidSetting, OutputError
from tests.support.layers import file, publish
from tests.support.registry import FaultyRegistry, corrupted

SIZE = 3 << 20


def image(registry: FaultyRegistry) -> str:
    return publish(registry, [file("a", os.urandom(SIZE))], [file("b", b"b" * SIZE)], [file("c", b"c")])


class Shown:
    """What a viewer would show."""

    def __init__(self, path: Path) -> None:
        document = json.loads(path.read_text())
        events = document["traceEvents"]
        self.groups = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        self.names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
        self.spans: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
        for event in events:
            assert event["ph"] in ("X", "M")
            if event["ph"] == "X":
                self.spans[event["pid"], event["tid"]].append(event)

    def stages(self, pid: int) -> set[str]:
        return {name.rstrip(" 0123456789") for (group, _), name in self.names.items() if group == pid}

    def check(self) -> None:
        """What holds for every trace."""
        assert set(self.spans) <= set(self.names)
        for spans in self.spans.values():
            for span in spans:
                assert span["ts"] >= 0
                assert span["dur"] >= 0
                assert span["cat"] in ("work", "wait")
                assert all(0 <= span["args"].get(share, 0) <= 1 for share in ("busy", "cpu", "waiting"))
            assert all(one["ts"] + one["dur"] <= other["ts"] for one, other in pairwise(spans))


async def traced(reference: str, output: Path, settings: Settings) -> tuple[Shown, fastpull.PullReport]:
    path = output.with_name("trace.json")
    with fastpull.sinks.TraceFile(path) as trace:
        async with fastpull.Client(settings) as client:
            report = await client.pull(reference, output, trace=trace)
    shown = Shown(path)
    shown.check()
    return shown, report


LAYER = {"downloading", "storing", "reading and verifying", "inflating", "hashing", "scanning and writing"}


@pytest.mark.parametrize(
    ("name", "of_image", "of_layer"),
    [
        ("out", {"finishing the output"}, set()),
        ("image.tar", {"finishing the output"}, set()),
        (
            "image.sqsh",
            {"planning", "closing gaps", "copying blocks", "making metadata"},
            {"compressing", "storing blocks"},
        ),
    ],
)
async def test_each_layer_has_a_lane_for_each_of_its_stages(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, name: str, of_image: set[str], of_layer: set[str]
) -> None:
    reference = image(registry)
    shown, report = await traced(reference, tmp_path / name, settings)
    digests = [layer.blob.digest.short for layer in report.image.layers]
    assert shown.groups[1] == "image"
    assert [shown.groups[pid].split(",")[0] for pid in (2, 3, 4)] == [f"layer {n} of 3" for n in (1, 2, 3)]
    assert [digest in shown.groups[pid] for pid, digest in enumerate(digests, 2)] == [True] * 3
    assert shown.stages(1) == {"resolving", "merging", "publishing"} | of_image
    for pid in (2, 3, 4):
        assert shown.stages(pid) == LAYER | of_layer
    fetched = [
        sum(span["args"].get("bytes", 0) for (pid, _), spans in shown.spans.items() if pid == group for span in spans)
        for group in (2, 3, 4)
    ]
    assert fetched == [layer.blob.size for layer in report.image.layers]
    assert set(report.stages) == shown.stages(1) | LAYER | of_layer
    assert report.bottleneck is not None
    assert report.bottleneck.stage in report.stages
    assert 0 < report.bottleneck.share <= 1


async def test_trace_of_cached_layers_has_no_download(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = image(registry)
    await traced(reference, tmp_path / "out", settings)
    shown, report = await traced(reference, tmp_path / "again", settings)
    assert "downloading" not in report.stages
    assert shown.stages(2) == LAYER - {"downloading", "storing"}


async def test_pull_without_trace_keeps_no_slices(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    async with fastpull.Client(settings) as client:
        report = await client.pull(image(registry), tmp_path / "out")
    assert set(report.stages) >= LAYER
    assert all(taken.cpu_seconds >= 0 and taken.busy_seconds >= 0 for taken in report.stages.values())


async def test_a_failed_pull_leaves_its_trace(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    registry.faults.append(corrupted())
    with pytest.raises(DigestMismatch):
        await traced(image(registry), tmp_path / "out", settings)
    shown = Shown(tmp_path / "trace.json")
    shown.check()
    assert any({"downloading", "reading and verifying"} <= shown.stages(pid) for pid in (2, 3, 4))


async def test_cancelled_pull_writes_its_trace_with_its_wait(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    asked = asyncio.Event()

    async def never(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    registry.faults.append(never)
    task = asyncio.create_task(traced(image(registry), tmp_path / "out", settings))
    await asyncio.wait_for(asked.wait(), 10)
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    shown = Shown(tmp_path / "trace.json")
    shown.check()
    names = {span["name"] for spans in shown.spans.values() for span in spans if span["cat"] == "wait"}
    assert {"waiting for bytes", "waiting for the answer"} <= names


async def test_several_pulls_share_a_trace_one_after_the_other(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference, trace = publish(registry, [file("a")]), fastpull.Trace()
    async with fastpull.Client(settings) as client:
        for name in ("one", "two"):
            await client.pull(reference, tmp_path / name, trace=trace)
    names = [e["args"]["name"] for e in trace.document()["traceEvents"] if e["name"] == "process_name"]
    assert [name.split(",")[0] for name in names] == ["image", "layer 1 of 1"] * 2


# --- the file


def test_a_trace_replaces_the_one_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("old")
    with fastpull.sinks.TraceFile(path):
        assert path.read_text() == "old", "until it is complete"
    assert json.loads(path.read_text())["traceEvents"] == []
    assert os.listdir(tmp_path) == ["trace.json"]


@pytest.mark.parametrize("name", ["", "-", "trace/"])
def test_a_trace_needs_the_name_of_a_file(name: str) -> None:
    with pytest.raises(InvalidSetting):
        fastpull.sinks.TraceFile(name)


def test_unwritable_trace_is_reported_before_the_pull(tmp_path: Path) -> None:
    for path in (tmp_path / "no/such/trace.json", tmp_path):
        with pytest.raises(OutputError), fastpull.sinks.TraceFile(path):
            pytest.fail("it has begun")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("error", [None, ValueError("the work's own")])
def test_error_of_the_pull_takes_precedence_over_that_of_the_trace(tmp_path: Path, error: ValueError | None) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(OutputError if error is None else ValueError, match=None if error is None else "own"):  # noqa: SIM117
        with fastpull.sinks.TraceFile(folder / "trace.json"):
            (folder / "trace.json").mkdir()  # it cannot become a file any more
            if error is not None:
                raise error
    assert os.listdir(folder) == ["trace.json"]


@pytest.mark.parametrize("workers", [2, 8])
async def test_hashing_is_counted_once_on_either_thread(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, workers: int
) -> None:
    """With two workers the layer's own thread does, with eight another one."""
    reference = publish(registry, [file("a", os.urandom(8 << 20))])
    began = time.process_time()
    async with fastpull.Client(replace(settings, workers=workers)) as client:
        report = await client.pull(reference, tmp_path / "out")
    assert report.stages["hashing"].cpu_seconds > 0
    assert sum(taken.cpu_seconds for taken in report.stages.values()) <= time.process_time() - began
