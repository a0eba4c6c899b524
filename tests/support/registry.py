"""A registry that misbehaves on demand, and records the requests."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web

from fastpull.demo.registry import LoopbackRegistry

Fault = Callable[["FaultyRegistry", web.Request, str], Awaitable[web.StreamResponse | None]]
"""Called with registry, request and digest for a blob request; returns a faulty response, or None for the right one."""


@dataclass
class RecordedRequest:
    """A received request."""

    method: str
    path: str
    range: str
    authorization: str
    time: float


@dataclass
class Account:
    """The account that may pull: by token, or by user name and password."""

    username: str = ""
    password: str = ""
    basic_only: bool = False
    lifetime_seconds: int = 300
    valid: set[str] = field(default_factory=set)
    issued: int = 0


class FaultyRegistry(LoopbackRegistry):
    """A loopback registry with faults and authorization.

    Attributes:
        requests: all requests, in order.
        sent: the number of sent bytes, by blob digest.
        faults: tried in order for each request for a blob.
        account: None for a registry without authorization.
        active: the number of requests in progress.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self.requests: list[RecordedRequest] = []
        self.sent: Counter[str] = Counter()
        self.faults: list[Fault] = []
        self.account: Account | None = None
        self.active = 0

    async def wait_until_idle(self) -> None:
        """Wait until no request is in progress, not even one of a killed client."""
        while self.active:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    def blob_requests(self) -> list[RecordedRequest]:
        return [one for one in self.requests if "/blobs/" in one.path]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.active += 1
        try:
            return await self._handle(request)
        finally:
            self.active -= 1

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        headers = request.headers
        self.requests.append(
            RecordedRequest(
                request.method,
                request.path,
                headers.get("Range", ""),
                headers.get("Authorization", ""),
                time.monotonic(),
            )
        )
        if request.path == "/token":
            return self._token(request)
        if self.account is not None and not self._is_allowed(request):
            return self._challenge(request)
        return await super().handle(request)

    async def serve_blob(self, request: web.Request, name: str, digest: str) -> web.StreamResponse:
        for fault in list(self.faults) if "Range" in request.headers else ():  # config requests have no Range
            answer = await fault(self, request, digest)
            if answer is not None:
                return answer
        answer = await super().serve_blob(request, name, digest)
        if isinstance(answer, web.Response) and isinstance(answer.body, bytes) and answer.status in (200, 206):
            self.sent[digest] += len(answer.body)
        return answer

    # --- authorization

    def _is_allowed(self, request: web.Request) -> bool:
        assert self.account is not None
        kind, _, value = request.headers.get("Authorization", "").partition(" ")
        if self.account.basic_only:
            return kind == "Basic" and value == self._basic()
        return kind == "Bearer" and value in self.account.valid

    def _challenge(self, request: web.Request) -> web.Response:
        assert self.account is not None
        name = re.sub(r"/v2/(.+)/(manifests|blobs)/.*", r"\1", request.path)
        bearer = f'Bearer realm="http://{self.address}/token",service="test",scope="repository:{name}:pull"'
        challenge = 'Basic realm="test"' if self.account.basic_only else bearer
        return self.refusal(401, "UNAUTHORIZED", {"WWW-Authenticate": challenge})

    def _token(self, request: web.Request) -> web.Response:
        assert self.account is not None
        given = request.headers.get("Authorization", "")
        if self.account.username and given != f"Basic {self._basic()}":
            return self.refusal(401, "UNAUTHORIZED")
        self.account.issued += 1
        token = f"token-{self.account.issued}"
        self.account.valid.add(token)
        return web.json_response({"token": token, "expires_in": self.account.lifetime_seconds})

    def _basic(self) -> str:
        assert self.account is not None
        return base64.b64encode(f"{self.account.username}:{self.account.password}".encode()).decode()


# --- faults


def times(count: int, fault: Fault) -> Fault:
    """Limit a fault to the first ``count`` requests."""
    left = count

    async def limited(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse | None:
        nonlocal left
        if left <= 0:
            return None
        left -= 1
        return await fault(registry, request, digest)

    return limited


def from_request(number: int, fault: Fault) -> Fault:
    """Start a fault with request ``number``, counted from 0."""
    seen = -1

    async def late(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse | None:
        nonlocal seen
        seen += 1
        return await fault(registry, request, digest) if seen >= number else None

    return late


def status(code: int, **headers: str) -> Fault:
    """Respond with an error status."""

    async def fault(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        return registry.refusal(code, "FAULT", {name.replace("_", "-"): value for name, value in headers.items()})

    return fault


def requested_range(request: web.Request, size: int) -> tuple[int, int]:
    match = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
    if match is None:
        return 0, size
    return int(match[1]), min(int(match[2]) + 1, size)


async def no_ranges(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """Respond to every range with the whole blob."""
    body = registry.blobs[digest]
    registry.sent[digest] += len(body)
    return web.Response(body=body)


async def no_length(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """Respond with the whole blob, chunked and without a length."""
    answer = web.StreamResponse()
    answer.enable_chunked_encoding()
    await answer.prepare(request)
    body = registry.blobs[digest]
    for at in range(0, len(body), 100_000):
        await answer.write(body[at : at + 100_000])
    await answer.write_eof()
    return answer


def wrong_content_range(text: str) -> Fault:
    """Respond to a range with another ``Content-Range``."""

    async def fault(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        start, stop = requested_range(request, len(registry.blobs[digest]))
        said = text.format(start=start, last=stop - 1, size=len(registry.blobs[digest]))
        return web.Response(status=206, body=registry.blobs[digest][start:stop], headers={"Content-Range": said})

    return fault


async def truncated(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """Send half of the announced bytes, and close the connection."""
    return await _partial(registry, request, digest, reset=False)


async def reset(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """Send half of the announced bytes, wait until they are read, and reset the connection.

    A reset discards the bytes that the client received but did not read; without the wait their number is unknown.
    """
    return await _partial(registry, request, digest, reset=True)


async def _partial(registry: FaultyRegistry, request: web.Request, digest: str, *, reset: bool) -> web.StreamResponse:
    body = registry.blobs[digest]
    start, stop = requested_range(request, len(body))
    answer = web.StreamResponse(status=206, headers={"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"})
    answer.content_length = stop - start
    await answer.prepare(request)
    half = body[start : start + (stop - start) // 2]
    registry.sent[digest] += len(half)
    await answer.write(half)
    assert request.transport is not None
    if reset:
        await asyncio.sleep(0.3)
        linger = struct.pack("ii", 1, 0)
        request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        request.transport.abort()
    else:
        await asyncio.sleep(0.01)
        request.transport.close()
    return answer


def halves() -> Fault:
    """Send only one half of each blob."""
    begun = set[str]()

    async def fault(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse | None:
        if digest in begun:
            return await status(404)(registry, request, digest)
        begun.add(digest)
        return await truncated(registry, request, digest)

    return fault


def slow(bytes_per_second: int) -> Fault:
    """Send at a limited rate per connection."""

    async def fault(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        body = registry.blobs[digest]
        start, stop = requested_range(request, len(body))
        answer = web.StreamResponse(status=206, headers={"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"})
        answer.content_length = stop - start
        await answer.prepare(request)
        step = bytes_per_second // 50
        for at in range(start, stop, step):
            piece = body[at : min(at + step, stop)]
            await answer.write(piece)
            registry.sent[digest] += len(piece)
            await asyncio.sleep(0.02)
        return answer

    return fault


def together(number: int) -> Fault:
    """Hold responses until ``number`` blobs are requested; respond with 404 after 5 seconds."""
    requested, all_requested = set[str](), asyncio.Event()

    async def fault(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse | None:
        requested.add(digest)
        if len(requested) == number:
            all_requested.set()
        try:
            await asyncio.wait_for(all_requested.wait(), 5)
        except TimeoutError:
            return await status(404)(registry, request, digest)
        return None

    return fault


def redirect(location: Callable[[str], str]) -> Fault:
    """Redirect blob requests."""

    async def fault(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": location(digest)})

    return fault


def corrupted(at: int = 100) -> Fault:
    """Flip one bit of the blob."""

    async def fault(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        body = bytearray(registry.blobs[digest])
        body[min(at, len(body) - 1)] ^= 1
        start, stop = requested_range(request, len(body))
        registry.sent[digest] += stop - start
        headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"}
        return web.Response(status=206, body=bytes(body[start:stop]), headers=headers)

    return fault


def docker_config(home: str, registry: str, username: str, password: str) -> None:
    """Write the file that ``docker login`` writes."""
    os.makedirs(f"{home}/.docker", exist_ok=True)
    auth = base64.b64encode(f"{username}:{password}".encode()).decode()
    with open(f"{home}/.docker/config.json", "w") as file:
        json.dump({"auths": {registry: {"auth": auth}}}, file)
