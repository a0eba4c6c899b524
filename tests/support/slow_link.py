"""A slow line: ``python -m tests.support.slow_link UPSTREAM DELAY RATE [TOTAL]``, a proxy on a loopback address.

Each connection is a line of its own: what comes back takes DELAY seconds, and passes at no more than RATE bytes a
second, as a sender's window over a long way has it; the first byte takes twice as long, for a connection has to be
agreed upon first. All of them together get no more than TOTAL bytes a second, if that is given. What is asked passes at
once: a delay is a round trip's. It speaks no protocol, so TLS would pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import dataclass

import uvloop

PIECE = 256 << 10
"""Bytes that are passed on at a time: smaller pieces take the cores from those who are measured."""


@dataclass(slots=True)
class Line:
    """When bytes arrive at the other end of a line; without a clock of its own.

    Attributes:
        delay: of each byte, in seconds.
        rate: bytes a second.
        free: when the next byte may set out.
    """

    delay: float
    rate: float
    free: float = 0.0

    def send(self, size: float, now: float) -> float:
        """Sends bytes, and returns when the last of them arrives."""
        self.free = max(self.free, now) + size / self.rate
        return self.free + self.delay

    @property
    def pieces(self) -> int:
        """How many pieces are on the way at a time where the line is full."""
        return int(self.delay * self.rate / PIECE) + 2


async def serve(upstream: tuple[str, int], delay: float, rate: float, total: float | None = None) -> asyncio.Server:
    """Opens a proxy on a port of the system's choice.

    Args:
        upstream: host and port of who answers.
        delay: of what comes back, in seconds.
        rate: bytes a second of each connection.
        total: of all connections together; by default there is no limit.
    """
    trunk = Line(0.0, total) if total else None

    async def accept(client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            server, forth = await asyncio.open_connection(*upstream, limit=PIECE)
            asking = asyncio.create_task(_forward(client, forth))
            try:
                await asyncio.sleep(delay)
                await _carry(server, back, Line(delay, rate), trunk)
            finally:
                asking.cancel()
                forth.close()
                back.close()

    return await asyncio.start_server(accept, "127.0.0.1", 0)


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: Line, trunk: Line | None) -> None:
    """Passes on what is read, each piece when it arrives; reads no more than is on the way."""
    loop = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(line.pieces)

    async def send() -> None:
        late = 0.0
        while data := await reader.read(PIECE):
            begun = loop.time() - late
            if trunk is not None:
                begun = trunk.send(len(data), begun)
                await asyncio.sleep(begun - loop.time())
            await under_way.put((line.send(len(data), begun), data))
            pause = line.free - loop.time()
            await asyncio.sleep(pause)
            late = loop.time() - line.free if pause > 0 else 0.0  # a timer that rings late does not slow the line down
        await under_way.put((0.0, b""))

    async def deliver() -> None:
        while True:
            due, data = await under_way.get()
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
