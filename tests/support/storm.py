"""Misbehavior of registries and proxies, by name, for requests of every kind."""

from __future__ import annotations

import asyncio
import email.utils
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from fastpull.errors import (
    AccessDenied,
    DigestMismatch,
    FastpullError,
    NotFound,
    RateLimited,
    SizeMismatch,
    TransportError,
    UnexpectedAnswer,
)
from tests.support.registry import (
    FaultyRegistry,
    corrupted,
    no_length,
    no_ranges,
    requested_range,
    reset,
    slow,
    status,
    truncated,
    wrong_content_range,
)

_PIECE = 64 << 10
_PAUSE_SECONDS = 2
_GRACE_SECONDS = 1.0  # for requests in flight when the pause was requested

Respond = Callable[["StormyRegistry", web.Request, str], Awaitable[web.StreamResponse | None]]


@dataclass(frozen=True, slots=True)
class Misbehavior:
    """One kind of misbehavior.

    Attributes:
        respond: called with registry, request and digest; the digest is empty for requests other than blobs.
        ranges_only: whether it applies only to ranges of blobs.
        is_final: whether a client must accept the response, so that the pull fails and is repeated.
        corrupts: whether it corrupts a blob, which is then fetched once more.
        error: the error of a pull that meets only this misbehavior; None if the pull succeeds.
    """

    respond: Respond
    ranges_only: bool = True
    is_final: bool = False
    corrupts: bool = False
    error: type[FastpullError] | None = UnexpectedAnswer


class StormyRegistry(FaultyRegistry):
    """Misbehaves for a share of all requests, and requires tokens.

    Attributes:
        share: the share of requests, from 0 to 1.
        choose: chooses the requests and their misbehavior.
        happened: the number of each misbehavior.
        lied: the number of final misbehaviors.
        spoiled: how often each blob was corrupted.
        only: the name of the only misbehavior; None for all.
        wasted: the bytes of wrong responses and of corrupted blobs.
        too_early: the requests within a requested pause.
    """

    def __init__(self) -> None:
        super().__init__()
        self.share = 0.0
        self.choose = random.Random()
        self.happened: Counter[str] = Counter()
        self.lied = 0
        self.spoiled: Counter[str] = Counter()
        self.only: str | None = None
        self.wasted = 0
        self.too_early: list[str] = []
        self.burst = 0
        self._pauses: list[tuple[float, float, str]] = []
        self._uses: Counter[str] = Counter()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        now, what = time.monotonic(), f"{request.path} {request.headers.get('Range', '')}"
        for begun, until, refused in self._pauses:
            if now < until and (what == refused or now > begun + _GRACE_SECONDS):
                self.too_early.append(f"{what}, {until - now:.2f} s too early")
        if request.path.startswith("/storage/"):
            return await self._storage(request)
        if request.path.startswith("/v2/") and len(request.path) > 4:
            answer = await self._wrong(request)
            if answer is not None:
                return answer
        return await super()._handle(request)

    async def _wrong(self, request: web.Request) -> web.StreamResponse | None:
        if self.burst:
            self.burst -= 1
            return self.refusal(500, "FAULT")
        if self.choose.random() >= self.share:
            return None
        is_range = "Range" in request.headers
        known = [name for name, wrong in MISBEHAVIORS.items() if is_range or not wrong.ranges_only]
        if self.only is not None:
            known = [name for name in known if name == self.only]
        if not known:
            return None
        name = self.choose.choice(known)
        wrong, digest = MISBEHAVIORS[name], request.path.rpartition("/")[2]
        self.happened[name] += 1
        before = self.sent[digest]
        self.lied += wrong.is_final
        self.spoiled[digest] += wrong.corrupts
        if wrong.is_final or wrong.corrupts:
            self.wasted += len(self.blobs.get(digest, b""))
        try:
            return await wrong.respond(self, request, digest)
        finally:
            if name not in _USEFUL:
                self.wasted += self.sent[digest] - before

    async def serve_blob(self, request: web.Request, name: str, digest: str) -> web.StreamResponse:
        """Send a blob, and count only the bytes sent before a disconnect."""
        return await self.stream(request, digest)

    async def stream(self, request: web.Request, digest: str, **headers: str) -> web.StreamResponse:
        body = self.blobs[digest]
        start, stop = requested_range(request, len(body))
        answer = web.StreamResponse(status=206 if "Range" in request.headers else 200)
        if answer.status == 206:
            answer.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
        answer.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
        answer.content_length = stop - start
        await answer.prepare(request)
        for at in range(start, stop, _PIECE):
            piece = body[at : min(at + _PIECE, stop)]
            await answer.write(piece)
            self.sent[digest] += len(piece)
        return answer

    def pause(self, request: web.Request, code: int, *, as_date: bool = False) -> web.Response:
        """Respond with a pause, and record it."""
        begun, wall = time.monotonic(), time.time()
        seconds, said = float(_PAUSE_SECONDS), str(_PAUSE_SECONDS)
        if as_date:
            seconds = int(wall) + _PAUSE_SECONDS - wall - 0.01
            said = email.utils.formatdate(int(wall) + _PAUSE_SECONDS, usegmt=True)
        self._pauses.append((begun, begun + seconds, f"{request.path} {request.headers.get('Range', '')}"))
        return self.refusal(code, "TOOMANYREQUESTS", {"Retry-After": said})

    def to_storage(self, request: web.Request, digest: str) -> web.Response:
        """Redirect to a location that expires after three requests."""
        self._uses[digest] = 3
        port = self.address.rpartition(":")[2]
        return web.Response(status=307, headers={"Location": f"http://localhost:{port}/storage/{digest}?signature=x"})

    async def _storage(self, request: web.Request) -> web.StreamResponse:
        digest = request.path.rpartition("/")[2]
        self._uses[digest] -= 1
        return await self.stream(request, digest) if self._uses[digest] >= 0 else web.Response(status=403)

    def revoke(self) -> None:
        """Revoke all issued tokens."""
        assert self.account is not None
        self.account.valid.clear()


# --- responses


def _code(code: int, *, is_final: bool = False, error: type[FastpullError] = UnexpectedAnswer) -> Misbehavior:
    async def answer(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse | None:
        return await status(code)(registry, request, digest)

    return Misbehavior(answer, ranges_only=False, is_final=is_final, error=error)


def _pause(code: int, *, as_date: bool = False) -> Misbehavior:
    async def answer(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        return registry.pause(request, code, as_date=as_date)

    return Misbehavior(answer, ranges_only=False, error=RateLimited if code == 429 else UnexpectedAnswer)


def _with(**headers: str) -> Respond:
    async def answer(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        return await registry.stream(request, digest, **headers)

    return answer


async def _burst(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    registry.burst = 2
    return registry.refusal(500, "FAULT")


async def _hang_up(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _no_response(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return web.Response()


async def _stall(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """Send half of the range, then stall."""
    body = registry.blobs[digest]
    start, stop = requested_range(request, len(body))
    answer = web.StreamResponse(status=206, headers={"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"})
    answer.content_length = stop - start
    await answer.prepare(request)
    half = body[start : (start + stop) // 2]
    await answer.write(half)
    registry.sent[digest] += len(half)
    return await _no_response(registry, request, digest)


async def _less(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """Send a shorter range than requested, which is allowed."""
    body = registry.blobs[digest]
    start, stop = requested_range(request, len(body))
    stop = start + max(1, (stop - start) // 3)
    registry.sent[digest] += stop - start
    headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"}
    return web.Response(status=206, body=body[start:stop], headers=headers)


async def _empty(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    start, stop = requested_range(request, len(registry.blobs[digest]))
    said = f"bytes {start}-{stop - 1}/{len(registry.blobs[digest])}"
    return web.Response(status=206, headers={"Content-Range": said})


async def _malformed_chunk(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    start, stop = requested_range(request, len(registry.blobs[digest]))
    said = f"bytes {start}-{stop - 1}/{len(registry.blobs[digest])}"
    assert request.transport is not None
    head = f"HTTP/1.1 206 Partial Content\r\nContent-Range: {said}\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n"
    request.transport.write(head.encode())
    request.transport.close()
    return web.Response()


async def _garbage(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """Send bytes that are not HTTP."""
    assert request.transport is not None
    request.transport.write(b"220 mail.example ESMTP\r\n250 OK\r\n")
    request.transport.close()
    return web.Response()


async def _no_length(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """Send a part without a length, and close the connection."""
    body = registry.blobs[digest]
    start, stop = requested_range(request, len(body))
    half = body[start : (start + stop) // 2]
    head = f"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{stop - 1}/{len(body)}\r\n"
    assert request.transport is not None
    request.transport.write(f"{head}Connection: close\r\n\r\n".encode() + half)
    registry.sent[digest] += len(half)
    await asyncio.sleep(0.05)  # time to read it
    request.transport.close()
    return web.Response()


async def _multipart(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """Send the range as multipart."""
    body = registry.blobs[digest]
    start, stop = requested_range(request, len(body))
    head = f"--part\r\nContent-Range: bytes {start}-{stop - 1}/{len(body)}\r\n\r\n".encode()
    headers = {"Content-Type": "multipart/byteranges; boundary=part"}
    return web.Response(status=206, body=head + body[start:stop] + b"\r\n--part--\r\n", headers=headers)


async def _another_range(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """Send the right headers with the bytes of another offset."""
    body = registry.blobs[digest]
    start, stop = requested_range(request, len(body))
    headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"}
    return web.Response(status=206, body=body[start + 1 : stop] + b"\0", headers=headers)


async def _redirect_loop(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": f"{request.path}?again"})


async def _invalid_pause(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    return registry.refusal(429, "TOOMANYREQUESTS", {"Retry-After": "soon"})


async def _no_content_range(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    start, stop = requested_range(request, len(registry.blobs[digest]))
    return web.Response(status=206, body=registry.blobs[digest][start:stop])


async def _revoked(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse | None:
    registry.revoke()
    return None


async def _moved(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    return registry.to_storage(request, digest)


async def _portal(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    return web.Response(text="<html>Please log in to the network</html>", content_type="text/html")


MISBEHAVIORS: dict[str, Misbehavior] = {
    "408": _code(408),
    "425": _code(425),
    "429": _code(429, error=RateLimited),
    "500": _code(500),
    "502": _code(502),
    "503": _code(503),
    "504": _code(504),
    "429 with a pause": _pause(429),
    "429 with a pause as a date": _pause(429, as_date=True),
    "429 with an invalid pause": Misbehavior(_invalid_pause, ranges_only=False, error=RateLimited),
    "503 with a pause": _pause(503),
    "burst of 500": Misbehavior(_burst, ranges_only=False),
    "connection aborted": Misbehavior(_hang_up, ranges_only=False, error=TransportError),
    "no response": Misbehavior(_no_response, ranges_only=False, error=TransportError),
    "garbage": Misbehavior(_garbage, ranges_only=False, error=TransportError),
    "token revoked": Misbehavior(_revoked, ranges_only=False, error=AccessDenied),
    "truncated": Misbehavior(truncated, error=TransportError),
    "reset": Misbehavior(reset, error=TransportError),
    "stalled": Misbehavior(_stall, error=TransportError),
    "slow drip": Misbehavior(slow(2 << 20), error=None),
    "less than requested": Misbehavior(_less, error=None),
    "ended without a length": Misbehavior(_no_length, error=TransportError),
    "whole blob": Misbehavior(no_ranges, error=None),
    "whole blob without a length": Misbehavior(no_length, error=None),
    "wrong start": Misbehavior(wrong_content_range("bytes 1-{last}/{size}")),
    "more than requested": Misbehavior(wrong_content_range("bytes {start}-{size}/*")),
    "invalid Content-Range": Misbehavior(wrong_content_range("pages 1-2/3")),
    "no Content-Range": Misbehavior(_no_content_range),
    "several parts": Misbehavior(_multipart),
    "empty": Misbehavior(_empty, error=TransportError),
    "malformed chunk": Misbehavior(_malformed_chunk, error=TransportError),
    "wrong Content-Encoding": Misbehavior(_with(Content_Encoding="gzip"), error=None),
    "changed ETag": Misbehavior(_with(ETag='"another"'), error=None),
    "redirect that expires": Misbehavior(_moved, error=None),
    "redirect loop": Misbehavior(_redirect_loop, is_final=True),
    "403": _code(403, is_final=True, error=AccessDenied),
    "404": _code(404, is_final=True, error=NotFound),
    "416": Misbehavior(status(416), is_final=True),
    "wrong total": Misbehavior(
        wrong_content_range("bytes {start}-{last}/999999999"), is_final=True, error=SizeMismatch
    ),
    "portal": Misbehavior(_portal, is_final=True, error=SizeMismatch),
    "wrong bytes": Misbehavior(corrupted(), corrupts=True, error=DigestMismatch),
    "bytes of another range": Misbehavior(_another_range, corrupts=True, error=DigestMismatch),
}
_USEFUL = {
    "truncated",
    "reset",
    "stalled",
    "slow drip",
    "ended without a length",
    "less than requested",
    "wrong Content-Encoding",
    "changed ETag",
}
