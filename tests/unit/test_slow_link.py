"""Slow links: arrival times and complete delivery."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support.slow_link import PIECE, Link, serve


def test_byte_arrives_after_the_delay() -> None:
    link = Link(delay=0.5, rate=1000)
    assert link.send(1, now=10.0) == pytest.approx(10.501)


def test_bytes_pass_in_order_at_the_rate() -> None:
    link = Link(delay=0.5, rate=1000)
    assert [link.send(1000, now=0.0) for _ in range(3)] == [1.5, 2.5, 3.5]


def test_idle_link_saves_no_capacity() -> None:
    link = Link(delay=0.0, rate=1000)
    link.send(1000, now=0.0)
    assert link.send(1000, now=60.0) == 61.0


def test_full_link_holds_the_pieces_in_flight() -> None:
    assert Link(delay=0.08, rate=50e6).pieces * PIECE >= 0.08 * 50e6


@pytest.mark.parametrize("total", [None, 1e9])
async def test_all_bytes_pass_in_both_directions(total: float | None) -> None:
    content = random.Random(1).randbytes(1 << 20)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(5) == b"hello"
        writer.write(content)
        await writer.drain()
        writer.close()

    upstream = await asyncio.start_server(answer, "127.0.0.1", 0)
    proxy = await serve(upstream.sockets[0].getsockname()[:2], 0.001, 1e9, total)
    async with upstream, proxy:
        reader, writer = await asyncio.open_connection(*proxy.sockets[0].getsockname()[:2])
        writer.write(b"hello")
        assert await reader.read(-1) == content
        writer.close()


async def test_connections_share_the_total_rate() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(256 << 10))
        await writer.drain()
        writer.close()

    async def fetch() -> None:
        reader, writer = await asyncio.open_connection(*proxy.sockets[0].getsockname()[:2])
        assert len(await reader.read(-1)) == 256 << 10
        writer.close()

    upstream = await asyncio.start_server(answer, "127.0.0.1", 0)
    proxy = await serve(upstream.sockets[0].getsockname()[:2], 0.0, 1e9, 4 << 20)
    loop = asyncio.get_running_loop()
    async with upstream, proxy:
        began = loop.time()
        await asyncio.gather(*(fetch() for _ in range(4)))
        assert loop.time() - began >= 0.25


async def test_late_timers_do_not_slow_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(10 * PIECE))
        await writer.drain()
        writer.close()

    on_time = asyncio.sleep

    async def late(seconds: float) -> None:
        await on_time(seconds + 0.05 if seconds > 0 else 0)

    monkeypatch.setattr(asyncio, "sleep", late)
    upstream = await asyncio.start_server(answer, "127.0.0.1", 0)
    proxy = await serve(upstream.sockets[0].getsockname()[:2], 0.0, PIECE / 0.05)
    loop = asyncio.get_running_loop()
    async with upstream, proxy:
        began = loop.time()
        reader, writer = await asyncio.open_connection(*proxy.sockets[0].getsockname()[:2])
        assert len(await reader.read(-1)) == 10 * PIECE
        assert 0.5 <= loop.time() - began < 0.8  # ten times too late: 1.0
        writer.close()
