"""A cluster of one rank: cancellation, and exceptions of the listener."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fastpull.cluster.root.cluster import Cluster
from fastpull.cluster.root.image_task import ImageTask
from fastpull.errors import RankFailed
from fastpull.telemetry.events import Event, NodeDone
from tests.cluster.memory import Hub


@pytest.fixture
async def hub() -> Hub:
    return Hub(1)


async def test_cancelled_rank_ends_also_after_an_error_of_its_image(hub: Hub, tmp_path: Path) -> None:
    cluster = Cluster(hub.fabrics[0], f"{tmp_path}/cache")
    image_task = ImageTask(0, "image", cluster._channel)
    is_ending = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            is_ending.set()
            await asyncio.sleep(0.2)  # removes its staging
            raise

    task = asyncio.create_task(cluster._work_on(image_task, work))
    await asyncio.sleep(0.01)
    image_task.fail(RankFailed(1, "n1", "no space left"))
    await is_ending.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_work_stopped_by_another_rank_has_no_result(hub: Hub, tmp_path: Path) -> None:
    cluster = Cluster(hub.fabrics[0], f"{tmp_path}/cache")
    image_task = ImageTask(0, "image", cluster._channel)
    task = asyncio.create_task(cluster._work_on(image_task, lambda: asyncio.sleep(60, "result")))
    await asyncio.sleep(0.01)
    image_task.fail(RankFailed(1, "n1", "no space left"))
    async with asyncio.timeout(10):
        assert await task is None


async def test_exception_of_the_listener_reaches_the_caller_of_run(hub: Hub, tmp_path: Path) -> None:
    def on_event(event: Event) -> None:
        if isinstance(event, NodeDone):
            raise LookupError("listener")  # noqa: TRY004

    async with asyncio.timeout(10):
        with pytest.raises(LookupError, match="listener"):
            async with Cluster(hub.fabrics[0], f"{tmp_path}/cache", on_event=on_event) as cluster:
                await cluster.run("image", lambda: asyncio.sleep(0))
    for task in list(hub.tasks):
        task.cancel()
