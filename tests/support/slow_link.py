"""A slow link: ``python -m tests.support.slow_link UPSTREAM DELAY RATE [TOTAL]``, a proxy on a loopback address.

Each connection is a link of its own. Responses arrive DELAY seconds later and at most at RATE bytes per second, like
those of a sender with a limited window. The first byte takes twice the delay, for the handshake of the connection.
TOTAL limits the bytes per second of all connections together. Requests pass at once, so that DELAY is a round-trip
time. The proxy knows no protocol; TLS passes as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import dataclass

import uvloop

PIECE = 256 << 10
"""Bytes forwarded at a time; smaller pieces would take processor time from the measured processes."""


@dataclass(slots=True)
class Link:
    """Arrival times of bytes at the other end of a link, computed without a clock.

    Attributes:
        delay: delay of each byte, in seconds.
        rate: bytes per second.
        free: time at which the next byte may be sent.
    """

    delay: float
    rate: float
    free: float = 0.0

    def send(self, size: float, now: float) -> float:
        """Send bytes, and return the arrival time of the last one."""
        self.free = max(self.free, now) + size / self.rate
        return self.free + self.delay

    @property
    def pieces(self) -> int:
        """Return the number of pieces in flight on a full link."""
        return int(self.delay * self.rate / PIECE) + 2


async def serve(upstream: tuple[str, int], delay: float, rate: float, total: float | None = None) -> asyncio.Server:
    """Open a proxy on a free port.

    Args:
        upstream: host and port of the server.
        delay: delay of responses, in seconds.
        rate: bytes per second of each connection.
        total: bytes per second of all connections together; unlimited by default.
    """
    trunk = Link(0.0, total) if total else None

    async def accept(client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            server, forth = await asyncio.open_connection(*upstream, limit=PIECE)
            forwarding = asyncio.create_task(_forward(client, forth))
            try:
                await asyncio.sleep(delay)
                await _carry(server, back, Link(delay, rate), trunk)
            finally:
                forwarding.cancel()
                forth.close()
                back.close()

    return await asyncio.start_server(accept, "127.0.0.1", 0)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: Link, trunk: Link | None) -> None:
    """Forward each piece at its arrival time, and read no more than the pieces in flight."""
    loop = asyncio.get_running_loop()
    in_flight: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(link.pieces)

    async def send() -> None:
        late = 0.0
        while data := await reader.read(PIECE):
            begun = loop.time() - late
            if trunk is not None:
                begun = trunk.send(len(data), begun)
                await asyncio.sleep(begun - loop.time())
            await in_flight.put((link.send(len(data), begun), data))
            pause = link.free - loop.time()
            await asyncio.sleep(pause)
            late = loop.time() - link.free if pause > 0 else 0.0  # a late timer does not slow the link down
        await in_flight.put((0.0, b""))

    async def deliver() -> None:
        while True:
            due, data = await in_flight.get()
            if not data:
                return
            await asyncio.sleep(due - loop.time())
            writer.write(data)
            await writer.drain()

    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        group.create_task(deliver())


async def _run(upstream: str, *numbers: float) -> None:
    host, _, port = upstream.rpartition(":")
    server = await serve((host, int(port)), *numbers)
    print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_run(sys.argv[1], *map(float, sys.argv[2:])))
