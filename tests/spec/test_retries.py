"""Retries: which requests, how often, and for how long."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

import fastpull
from fastpull.config.access import Access
from fastpull.config.settings import Settings
from fastpull.errors import FastpullError, SizeMismatch, TransportError, UnexpectedAnswer
from fastpull.registry.client import RegistryClient
from fastpull.registry.download import throughput as flows
from fastpull.registry.download.adaptive import AdaptiveConcurrency
from fastpull.registry.download.download import MIN_PROGRESS, Download
from fastpull.registry.http.retry import Backoff
from fastpull.telemetry.events import Event, Retrying
from tests.support.layers import file, publish, stored
from tests.support.registry import FaultyRegistry, requested_range, status, times, wrong_content_range

SIZE = 24 << 20
CONTENT = os.urandom(SIZE)
_SHORT = Backoff(first_seconds=0.01, max_seconds=0.05)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Download, "backoff", _SHORT)
    monkeypatch.setattr(RegistryClient, "backoff", _SHORT)


class _Documents(FaultyRegistry):
    """Responds to the first manifest requests with these statuses."""

    codes: list[int] = []  # noqa: RUF012  # replaced in each test

    async def serve_manifest(self, request: web.Request, name: str, version: str) -> web.StreamResponse:
        if self.codes:
            return self.refusal(self.codes.pop(0), "FAULT")
        return await super().serve_manifest(request, name, version)


@pytest.fixture
async def registry() -> AsyncIterator[_Documents]:
    async with _Documents() as running:
        yield running


async def pull(registry: FaultyRegistry, tmp_path: Path, settings: Settings, **access: float) -> list[Event]:
    """Pull an image with one large layer, and check every byte."""
    events: list[Event] = []
    reference = publish(registry, stored([file("f", CONTENT)], bytes))
    settings = replace(settings, access=Access(**access))  # type: ignore[arg-type]
    async with fastpull.Client(settings, on_event=events.append) as client:
        await client.pull(reference, tmp_path / "out")
    assert (tmp_path / "out/f").read_bytes() == CONTENT
    return events


async def refused(
    kind: type[FastpullError], registry: FaultyRegistry, tmp_path: Path, settings: Settings, **access: float
) -> FastpullError:
    with pytest.raises(kind) as caught:
        await pull(registry, tmp_path, settings, **access)
    assert not (tmp_path / "out").exists()
    return caught.value


def cut_after(size: int) -> object:
    """Return a fault that closes the connection after some bytes of each range."""

    async def fault(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        body = registry.blobs[digest]
        start, stop = requested_range(request, len(body))
        answer = web.StreamResponse(status=206, headers={"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"})
        answer.content_length = stop - start
        await answer.prepare(request)
        await answer.write(body[start : min(stop, start + size)])
        await asyncio.sleep(0.02)  # lets the client read it
        assert request.transport is not None
        request.transport.close()
        return answer

    return fault


# --- limits


@pytest.mark.case("http", "a blob always cut off after a few bytes")
@pytest.mark.parametrize("size", [1, 1000, MIN_PROGRESS // 2])
async def test_blob_always_cut_off_fails(registry: _Documents, settings: Settings, tmp_path: Path, size: int) -> None:
    registry.faults.append(cut_after(size))  # type: ignore[arg-type]
    await refused(TransportError, registry, tmp_path, settings)
    most = (1 + Access().retries) * AdaptiveConcurrency.start_connections
    assert len(registry.blob_requests()) - 1 <= most  # without the config request


@pytest.mark.case("http", "many breaks, each after 100 KiB")
async def test_breaks_after_progress_do_not_count(registry: _Documents, settings: Settings, tmp_path: Path) -> None:
    registry.faults.append(times(60, cut_after(100 << 10)))  # type: ignore[arg-type]
    await pull(registry, tmp_path, settings, retries=1)


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_number_of_retries_is_a_setting(
    registry: _Documents, settings: Settings, tmp_path: Path, retries: int
) -> None:
    registry.codes = [500] * 100
    await refused(UnexpectedAnswer, registry, tmp_path, settings, retries=retries)
    assert sum("/manifests/" in asked.path for asked in registry.requests) == 1 + retries


async def test_retries_without_progress_are_limited_by_time(
    registry: _Documents, settings: Settings, tmp_path: Path
) -> None:
    registry.codes = [503] * 10_000
    began = time.monotonic()
    await refused(UnexpectedAnswer, registry, tmp_path, settings, retries=10_000, timeout=0.1)
    assert 0.5 <= time.monotonic() - began < 5


@pytest.mark.case("http", "a network failure: one message for all connections")
async def test_failures_of_one_cause_are_reported_once(
    registry: _Documents, settings: Settings, tmp_path: Path
) -> None:
    async def gone(_: FaultyRegistry, request: web.Request, __: str) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    registry.faults += [times(1, cut_after(2 << 20)), times(20, gone)]  # type: ignore[arg-type]
    events = [event for event in await pull(registry, tmp_path, settings) if isinstance(event, Retrying)]
    told = [event.reason for event in events if not event.is_repeated]
    assert len(events) >= 10
    assert len(told) <= 3, told


# --- transient failures


@pytest.mark.case("http", "416 once for a valid range")
@pytest.mark.parametrize("count", [1, 2])
async def test_range_refused_once_is_retried(
    registry: _Documents, settings: Settings, tmp_path: Path, count: int
) -> None:
    registry.faults.append(times(count, status(416)))
    await pull(registry, tmp_path, settings)


@pytest.mark.case("http", "a wrong total in Content-Range, once")
async def test_wrong_total_is_retried(registry: _Documents, settings: Settings, tmp_path: Path) -> None:
    registry.faults.append(times(1, wrong_content_range("bytes {start}-{last}/999999999")))
    await pull(registry, tmp_path, settings)


@pytest.mark.case("http", "a wrong total in Content-Range, always")
async def test_persistently_wrong_total_error_names_host_and_image(
    registry: _Documents, settings: Settings, tmp_path: Path
) -> None:
    registry.faults.append(wrong_content_range("bytes {start}-{last}/999999999"))
    error = await refused(SizeMismatch, registry, tmp_path, settings)
    assert len(registry.blob_requests()) - 1 == 3
    assert registry.address in str(error)
    assert "test/image:v1" in str(error)


@pytest.mark.case("http", "a mixed burst of 5xx for a manifest")
@pytest.mark.parametrize("codes", [[500, 502, 503, 504, 500], [520, 521, 522, 524, 529], [507, 508, 502, 500, 503]])
async def test_burst_of_server_errors_is_retried(
    registry: _Documents, settings: Settings, tmp_path: Path, codes: list[int]
) -> None:
    registry.codes = list(codes)
    await pull(registry, tmp_path, settings)


@pytest.mark.case("http", "501: not retried")
async def test_permanent_server_errors_are_not_retried(
    registry: _Documents, settings: Settings, tmp_path: Path
) -> None:
    registry.codes = [501] * 10
    await refused(UnexpectedAnswer, registry, tmp_path, settings)
    assert len(registry.codes) == 9


@pytest.mark.case("http", "a malformed chunk on an open connection")
@pytest.mark.parametrize("chunks", [b"nonsense\r\n", b"5\r\nabcdeXX", b"ffffffffffffffffff\r\n"])
async def test_malformed_chunk_is_detected_at_once(
    registry: _Documents, settings: Settings, tmp_path: Path, chunks: bytes
) -> None:
    async def malformed(faulty: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        start, stop = requested_range(request, len(faulty.blobs[digest]))
        said = f"bytes {start}-{stop - 1}/{len(faulty.blobs[digest])}"
        assert request.transport is not None
        head = f"HTTP/1.1 206 Partial Content\r\nContent-Range: {said}\r\nTransfer-Encoding: chunked\r\n\r\n"
        request.transport.write(head.encode())
        await asyncio.sleep(0.05)
        request.transport.write(chunks)
        while not request.transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return web.Response()

    registry.faults.append(times(1, malformed))
    async with asyncio.timeout(10):
        await pull(registry, tmp_path, settings)


@pytest.mark.case("http", "a range lags far behind the others")
@pytest.mark.parametrize("has_answer", [True, False])
async def test_stalled_range_is_requested_again(
    registry: _Documents, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_answer: bool
) -> None:
    monkeypatch.setattr(flows, "LAG_SECONDS", 1.0)
    monkeypatch.setattr(AdaptiveConcurrency, "max_range", 2 << 20)
    number = 0

    async def stall(faulty: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse | None:
        nonlocal number
        number += 1
        if number != 3:
            return None
        answer = web.StreamResponse(status=206)
        start, stop = requested_range(request, len(faulty.blobs[digest]))
        answer.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(faulty.blobs[digest])}"
        answer.content_length = stop - start
        if has_answer:
            await answer.prepare(request)
            await answer.write(faulty.blobs[digest][start : start + 1000])
        while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return web.Response()

    registry.faults.append(stall)
    async with asyncio.timeout(20):
        events = await pull(registry, tmp_path, settings)
    assert any(isinstance(event, Retrying) and "far slower" in event.reason for event in events)
    sent = sum(registry.sent.values())
    assert sent <= len(CONTENT) + (1 << 20)
