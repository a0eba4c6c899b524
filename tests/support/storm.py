"""All that a registry or what stands before it does wrong, by name, for requests of every kind."""

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
    asked_range,
    corrupted,
    no_length,
    no_ranges,
    reset,
    slow,
    status,
    truncated,
    wrong_content_range,
)

_PIECE = 64 << 10
_PAUSE_SECONDS = 2
_GRACE_SECONDS = 1.0  # for requests that were on their way when the pause was asked for

Answer = Callable[["StormyRegistry", web.Request, str], Awaitable[web.StreamResponse | None]]


@dataclass(frozen=True, slots=True)
class Wrong:
    """Something that goes wrong.

    Attributes:
        answer: gets (registry, request, digest), the last empty for what is no blob.
        ranges_only: makes sense for ranges of blobs alone.
        lies: in a way that a client has to take for the truth, so that the pull fails, and the user repeats it.
        spoils: a blob, which is then fetched once more.
        ends: what a pull fails with that meets nothing else; None if it succeeds all the same.
    """

    answer: Answer
    ranges_only: bool = True
    lies: bool = False
    spoils: bool = False
    ends: type[FastpullError] | None = UnexpectedAnswer


class StormyRegistry(FaultyRegistry):
    """Answers a share of all requests wrongly, and asks for tokens.

    Attributes:
        share: of requests, from 0 to 1.
        choose: which, and what goes wrong.
        happened: how often each did.
        lied: how often it lied.
        spoiled: how often each blob was.
        only: the one thing that goes wrong, by name; otherwise all do.
        wasted: bytes of blobs that wrong answers carried, and blobs that one of them spoiled.
        too_early: requests within a pause that was asked for.
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
        known = [name for name, wrong in WRONGS.items() if is_range or not wrong.ranges_only]
        if self.only is not None:
            known = [name for name in known if name == self.only]
        if not known:
            return None
        name = self.choose.choice(known)
        wrong, digest = WRONGS[name], request.path.rpartition("/")[2]
        self.happened[name] += 1
        before = self.sent[digest]
        self.lied += wrong.lies
        self.spoiled[digest] += wrong.spoils
        if wrong.lies or wrong.spoils:
            self.wasted += len(self.blobs.get(digest, b""))
        try:
            return await wrong.answer(self, request, digest)
        finally:
            if name not in _USEFUL:
                self.wasted += self.sent[digest] - before

    async def serve_blob(self, request: web.Request, name: str, digest: str) -> web.StreamResponse:
        """Right, and counted as it goes: who hangs up has not got the rest."""
        return await self.stream(request, digest)

    async def stream(self, request: web.Request, digest: str, **headers: str) -> web.StreamResponse:
        body = self.blobs[digest]
        start, stop = asked_range(request, len(body))
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
        """Asks for a pause, and remembers it."""
        begun, wall = time.monotonic(), time.time()
        seconds, said = float(_PAUSE_SECONDS), str(_PAUSE_SECONDS)
        if as_date:
            seconds = int(wall) + _PAUSE_SECONDS - wall - 0.01
            said = email.utils.formatdate(int(wall) + _PAUSE_SECONDS, usegmt=True)
        self._pauses.append((begun, begun + seconds, f"{request.path} {request.headers.get('Range', '')}"))
        return self.refusal(code, "TOOMANYREQUESTS", {"Retry-After": said})

    def to_storage(self, request: web.Request, digest: str) -> web.Response:
        """Redirects to a place that is good for a few requests."""
        self._uses[digest] = 3
        port = self.address.rpartition(":")[2]
        return web.Response(status=307, headers={"Location": f"http://localhost:{port}/storage/{digest}?signature=x"})

    async def _storage(self, request: web.Request) -> web.StreamResponse:
        digest = request.path.rpartition("/")[2]
        self._uses[digest] -= 1
        return await self.stream(request, digest) if self._uses[digest] >= 0 else web.Response(status=403)

    def revoke(self) -> None:
        """No token that was given is good any more."""
        assert self.account is not None
        self.account.valid.clear()


# --- answers


def _code(code: int, *, lies: bool = False, ends: type[FastpullError] = UnexpectedAnswer) -> Wrong:
    async def answer(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse | None:
        return await status(code)(registry, request, digest)

    return Wrong(answer, ranges_only=False, lies=lies, ends=ends)


def _pause(code: int, *, as_date: bool = False) -> Wrong:
    async def answer(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        return registry.pause(request, code, as_date=as_date)

    return Wrong(answer, ranges_only=False, ends=RateLimited if code == 429 else UnexpectedAnswer)


def _with(**headers: str) -> Answer:
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


async def _say_nothing(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    return web.Response()


async def _stall(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """Half of it, and then nothing."""
    body = registry.blobs[digest]
    start, stop = asked_range(request, len(body))
    answer = web.StreamResponse(status=206, headers={"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"})
    answer.content_length = stop - start
    await answer.prepare(request)
    half = body[start : (start + stop) // 2]
    await answer.write(half)
    registry.sent[digest] += len(half)
    return await _say_nothing(registry, request, digest)


async def _less(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """A shorter range than was asked for, as it may."""
    body = registry.blobs[digest]
    start, stop = asked_range(request, len(body))
    stop = start + max(1, (stop - start) // 3)
    registry.sent[digest] += stop - start
    headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"}
    return web.Response(status=206, body=body[start:stop], headers=headers)


async def _empty(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    start, stop = asked_range(request, len(registry.blobs[digest]))
    said = f"bytes {start}-{stop - 1}/{len(registry.blobs[digest])}"
    return web.Response(status=206, headers={"Content-Range": said})


async def _malformed_chunk(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    start, stop = asked_range(request, len(registry.blobs[digest]))
    said = f"bytes {start}-{stop - 1}/{len(registry.blobs[digest])}"
    assert request.transport is not None
    head = f"HTTP/1.1 206 Partial Content\r\nContent-Range: {said}\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n"
    request.transport.write(head.encode())
    request.transport.close()
    return web.Response()


async def _garbage(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """Nothing that HTTP knows."""
    assert request.transport is not None
    request.transport.write(b"220 mail.example ESMTP\r\n250 OK\r\n")
    request.transport.close()
    return web.Response()


async def _no_end_said(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """A part of it without a length, and the end of the connection."""
    body = registry.blobs[digest]
    start, stop = asked_range(request, len(body))
    half = body[start : (start + stop) // 2]
    head = f"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{stop - 1}/{len(body)}\r\n"
    assert request.transport is not None
    request.transport.write(f"{head}Connection: close\r\n\r\n".encode() + half)
    registry.sent[digest] += len(half)
    await asyncio.sleep(0.05)  # time to read it
    request.transport.close()
    return web.Response()


async def _multipart(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """The range as a part of several."""
    body = registry.blobs[digest]
    start, stop = asked_range(request, len(body))
    head = f"--part\r\nContent-Range: bytes {start}-{stop - 1}/{len(body)}\r\n\r\n".encode()
    headers = {"Content-Type": "multipart/byteranges; boundary=part"}
    return web.Response(status=206, body=head + body[start:stop] + b"\r\n--part--\r\n", headers=headers)


async def _another_range(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """What it says, and the bytes of another place."""
    body = registry.blobs[digest]
    start, stop = asked_range(request, len(body))
    headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"}
    return web.Response(status=206, body=body[start + 1 : stop] + b"\0", headers=headers)


async def _in_circles(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": f"{request.path}?again"})


async def _nonsensical_pause(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    return registry.refusal(429, "TOOMANYREQUESTS", {"Retry-After": "soon"})


async def _no_range_said(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    start, stop = asked_range(request, len(registry.blobs[digest]))
    return web.Response(status=206, body=registry.blobs[digest][start:stop])


async def _revoked(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse | None:
    registry.revoke()
    return None


async def _moved(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    return registry.to_storage(request, digest)


async def _portal(registry: StormyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    return web.Response(text="<html>Please log in to the network</html>", content_type="text/html")


WRONGS: dict[str, Wrong] = {
    "408": _code(408),
    "425": _code(425),
    "429": _code(429, ends=RateLimited),
    "500": _code(500),
    "502": _code(502),
    "503": _code(503),
    "504": _code(504),
    "429 with a pause": _pause(429),
    "429 with a pause as a date": _pause(429, as_date=True),
    "429 with a pause of nonsense": Wrong(_nonsensical_pause, ranges_only=False, ends=RateLimited),
    "503 with a pause": _pause(503),
    "burst of 500": Wrong(_burst, ranges_only=False),
    "hung up": Wrong(_hang_up, ranges_only=False, ends=TransportError),
    "no answer": Wrong(_say_nothing, ranges_only=False, ends=TransportError),
    "garbage": Wrong(_garbage, ranges_only=False, ends=TransportError),
    "token revoked": Wrong(_revoked, ranges_only=False, ends=AccessDenied),
    "truncated": Wrong(truncated, ends=TransportError),
    "reset": Wrong(reset, ends=TransportError),
    "stalled": Wrong(_stall, ends=TransportError),
    "slow drip": Wrong(slow(2 << 20), ends=None),
    "less than was asked for": Wrong(_less, ends=None),
    "ended without a length": Wrong(_no_end_said, ends=TransportError),
    "whole blob": Wrong(no_ranges, ends=None),
    "whole blob without a length": Wrong(no_length, ends=None),
    "wrong start": Wrong(wrong_content_range("bytes 1-{last}/{size}")),
    "more than was asked for": Wrong(wrong_content_range("bytes {start}-{size}/*")),
    "nonsense in Content-Range": Wrong(wrong_content_range("pages 1-2/3")),
    "no Content-Range": Wrong(_no_range_said),
    "several parts": Wrong(_multipart),
    "empty": Wrong(_empty, ends=TransportError),
    "malformed chunk": Wrong(_malformed_chunk, ends=TransportError),
    "lying Content-Encoding": Wrong(_with(Content_Encoding="gzip"), ends=None),
    "changed ETag": Wrong(_with(ETag='"another"'), ends=None),
    "redirect that expires": Wrong(_moved, ends=None),
    "redirect in circles": Wrong(_in_circles, lies=True),
    "403": _code(403, lies=True, ends=AccessDenied),
    "404": _code(404, lies=True, ends=NotFound),
    "416": Wrong(status(416), lies=True),
    "wrong total": Wrong(wrong_content_range("bytes {start}-{last}/999999999"), lies=True, ends=SizeMismatch),
    "portal": Wrong(_portal, lies=True, ends=SizeMismatch),
    "wrong bytes": Wrong(corrupted(), spoils=True, ends=DigestMismatch),
    "bytes of another range": Wrong(_another_range, spoils=True, ends=DigestMismatch),
}
_USEFUL = {
    "truncated",
    "reset",
    "stalled",
    "slow drip",
    "ended without a length",
    "less than was asked for",
    "lying Content-Encoding",
    "changed ETag",
}
