"""The download of one blob, with a client in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest

from fastpull.concurrency.budget import ByteBudget
from fastpull.errors import NotFound
from fastpull.oci.descriptor import Descriptor
from fastpull.oci.digest import Digest
from fastpull.registry.download.download import Download
from fastpull.registry.download.ranges import FIRST_RANGE
from fastpull.registry.host_limiter import HostLimiter
from fastpull.telemetry.timing import PullTimer

SIZE = 20 * FIRST_RANGE


class Body:
    is_whole = False
    host = "memory"

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self._left = stop - start

    async def pieces(self) -> list[bytes]:
        size = min(self._left, 1 << 20)
        self._left -= size
        return [bytes(size)] if size else []


class FakeClient:
    """A client that has only the first range of every blob."""

    name = "memory"
    on_retry = staticmethod(lambda *_: None)
    connection_permit = staticmethod(nullcontext)

    def __init__(self) -> None:
        self.limiter = HostLimiter(4)

    def is_paused(self, _: Digest) -> bool:
        return False

    def host_limiter(self, _: Digest) -> HostLimiter:
        return self.limiter

    @asynccontextmanager
    async def open_range(self, _name: str, _blob: Descriptor, start: int, stop: int) -> AsyncIterator[Body]:
        if start:
            raise NotFound("range", "memory")
        yield Body(start, stop)


class MemoryTarget:
    def gaps(self) -> list[tuple[int, int]]:
        return [(0, SIZE)]

    def write(self, offset: int, pieces: Sequence[bytes]) -> None:
        pass


async def test_failed_download_releases_every_connection() -> None:
    client: Any = FakeClient()
    blob = Descriptor("application/octet-stream", Digest.of(b""), SIZE)
    with ThreadPoolExecutor(2) as executor:
        for _ in range(3):
            download = Download(
                client,
                "a",
                blob,
                MemoryTarget(),
                priority=0,
                budget=ByteBudget(1 << 30),
                executor=executor,
                timing=PullTimer().image,
            )
            assert repr(download) == (
                f"<Download {blob.digest} from memory/a, {SIZE} of {SIZE} bytes missing, 0 ranges in progress>"
            )
            with pytest.raises(NotFound):
                await asyncio.wait_for(download.run(), 10)
            await asyncio.sleep(0)
            permits = [await asyncio.wait_for(client.limiter.acquire(0), 1) for _ in range(4)]
            for permit in permits:
                permit.release()
