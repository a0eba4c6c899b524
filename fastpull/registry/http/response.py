"""HTTP responses, read piece by piece without decoding."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import aiohttp

from fastpull.errors import TransportError, UnexpectedAnswer, translate_errors
from fastpull.registry.http.urls import host_of, redacted

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler

    from fastpull.errors import ErrorMapping

_MAX_ERROR_BODY = 64 << 10


class Response:
    """A response whose headers are received and whose body is still to be read.

    Attributes:
        url: the URL that responded.
        status: the HTTP status code.
        headers: the header fields; names are case-insensitive.
    """

    def __init__(self, response: aiohttp.ClientResponse, errors: ErrorMapping, timeout_seconds: float) -> None:
        self.url = response.url
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._errors = errors
        self._timeout_seconds = timeout_seconds
        self._consumed = 0

    @property
    def host(self) -> str:
        """``host[:port]`` of the URL, for messages."""
        return host_of(self.url)

    @property
    def challenge(self) -> str:
        """All ``WWW-Authenticate`` headers, joined into one."""
        return ", ".join(self._response.headers.getall("WWW-Authenticate", []))

    async def pieces(self) -> list[bytes]:
        """Return all received bytes of the body, or wait for the next; an empty list at the end.

        The pieces are not joined, because that would copy them once more.

        Raises:
            TransportError: the connection broke or stalled.
        """
        content, found = self._response.content, list[bytes]()
        with translate_errors(self._errors):
            async with asyncio.timeout(self._timeout_seconds):
                while not found or self._consumed < content.total_bytes:
                    piece, _ = await content.readchunk()
                    if piece:
                        found.append(piece)
                        self._consumed += len(piece)
                    elif content.at_eof():
                        break
        return found

    async def body(self, max_size: int) -> bytes:
        """Return the whole of a small body.

        Raises:
            UnexpectedAnswer: the body exceeds ``max_size`` bytes.
            TransportError: as `pieces`.
        """
        found = bytearray()
        while pieces := await self.pieces():
            found += b"".join(pieces)
            if len(found) > max_size:
                raise UnexpectedAnswer(redacted(self.url), f"a body of more than {max_size} bytes", self.status)
        return bytes(found)

    async def error_detail(self) -> str:
        """Return the body of an error response as one short line; empty if it cannot be read."""
        with contextlib.suppress(TransportError, UnexpectedAnswer):
            return " ".join((await self.body(_MAX_ERROR_BODY)).decode("utf-8", "replace").split())[:300]
        return ""


class ClosedConnections:
    """Fails responses whose connection is closed before the end of their body.

    aiohttp closes a connection after a malformed chunk, but does not wake the reader of the body.
    """

    def __init__(self) -> None:
        self._bodies = WeakKeyDictionary["ResponseHandler", aiohttp.StreamReader]()

    def watch(self, response: aiohttp.ClientResponse) -> None:
        """Watch the connection of a response whose body is not yet read."""
        protocol = response.connection.protocol if response.connection is not None else None
        if protocol is None:
            return
        is_known = protocol in self._bodies
        self._bodies[protocol] = response.content
        if not is_known and (closed := protocol.closed) is not None:
            closed.add_done_callback(lambda closed: self._fail(protocol, closed))

    def _fail(self, protocol: ResponseHandler, closed: asyncio.Future[None]) -> None:
        if not closed.cancelled():
            closed.exception()  # marks it as retrieved: the body has the same exception
        body = self._bodies.pop(protocol, None)
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError("the connection was closed, or its chunks are malformed"))
