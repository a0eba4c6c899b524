"""Responses, read piece by piece; nothing is decoded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import aiohttp

from fastpull.errors import TransportError, UnexpectedAnswer
from fastpull.registry.http.urls import host_of, shown

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler

    from fastpull.errors import ErrorTranslator

_MAX_ERROR_BODY = 64 << 10


class Response:
    """A response whose headers have come.

    Attributes:
        url: that answered.
        status: HTTP's.
        headers: case-insensitive.
    """

    def __init__(self, response: aiohttp.ClientResponse, border: ErrorTranslator, timeout_seconds: float) -> None:
        self.url = response.url
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._border = border
        self._timeout_seconds = timeout_seconds
        self._taken = 0

    @property
    def host(self) -> str:
        """``host[:port]`` of the URL, for messages."""
        return host_of(self.url)

    @property
    def challenge(self) -> str:
        """All ``WWW-Authenticate`` headers, as one."""
        return ", ".join(self._response.headers.getall("WWW-Authenticate", []))

    async def pieces(self) -> list[bytes]:
        """The next bytes of the body, all that are there; nothing at its end.

        They are as they came: what came while the loop was busy would be copied once more to make it one.

        Raises:
            TransportError: it breaks off, or stalls.
        """
        content, found = self._response.content, list[bytes]()
        with self._border:
            async with asyncio.timeout(self._timeout_seconds):
                while not found or self._taken < content.total_bytes:
                    piece, _ = await content.readchunk()
                    if piece:
                        found.append(piece)
                        self._taken += len(piece)
                    elif content.at_eof():
                        break
        return found

    async def body(self, max_size: int) -> bytes:
        """The whole of a small body.

        Raises:
            UnexpectedAnswer: it is larger than ``max_size`` bytes.
            TransportError: as `pieces`.
        """
        found = bytearray()
        while pieces := await self.pieces():
            found += b"".join(pieces)
            if len(found) > max_size:
                raise UnexpectedAnswer(shown(self.url), f"a body of more than {max_size} bytes", self.status)
        return bytes(found)

    async def complaint(self) -> str:
        """What an error answer says, cut to one short line."""
        with contextlib.suppress(TransportError, UnexpectedAnswer):
            return " ".join((await self.body(_MAX_ERROR_BODY)).decode("utf-8", "replace").split())[:300]
        return ""


class ClosedConnections:
    """Fails responses whose connection is closed before their end.

    aiohttp closes a connection on which a chunk is malformed, and leaves whoever reads the body waiting.
    """

    def __init__(self) -> None:
        self._bodies = WeakKeyDictionary["ResponseHandler", aiohttp.StreamReader]()

    def watch(self, response: aiohttp.ClientResponse) -> None:
        """Watch the connection of a response whose body has not come yet."""
        protocol = response.connection.protocol if response.connection is not None else None
        if protocol is None:
            return
        is_known = protocol in self._bodies
        self._bodies[protocol] = response.content
        if not is_known and (closed := protocol.closed) is not None:
            closed.add_done_callback(lambda closed: self._fail(protocol, closed))

    def _fail(self, protocol: ResponseHandler, closed: asyncio.Future[None]) -> None:
        if not closed.cancelled():
            closed.exception()  # the body has got it already
        body = self._bodies.pop(protocol, None)
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError("the connection was closed, or its chunks are malformed"))
