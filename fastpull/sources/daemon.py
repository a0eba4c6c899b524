"""Images that a container engine of this machine has: it is asked for an archive, which is streamed into a spool."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

import aiohttp
from yarl import URL

from fastpull.errors import NotFound, TransportError, UnexpectedAnswer, map_exceptions
from fastpull.sources.archive import Archive, archive_of
from fastpull.sources.spool import Spool
from fastpull.tasks import in_thread

if TYPE_CHECKING:
    from fastpull.cache.store import Store
    from fastpull.config import Limits

_DOCKER_SOCKET = "/var/run/docker.sock"
_CONNECT_SECONDS = 10.0
_STALL_SECONDS = 600.0  # docker writes the whole image to its own disk before the first byte comes
_CHUNK = 1 << 20
_MAX_COMPLAINT = 64 << 10


@dataclass(frozen=True, slots=True)
class Desk:
    """Where archives are received and opened.

    Attributes:
        store: the cache, which holds them while they are needed.
        executor: for blocking calls on files.
        limits: how large they may be.
    """

    store: Store
    executor: Executor
    limits: Limits

    async def opened(self, open_it: Callable[[Callable[[], bool]], Archive]) -> Archive:
        """Opens an archive on a thread; ``open_it`` is given what tells it to give up."""
        stopped = threading.Event()
        return await in_thread(self.executor, open_it, stopped.is_set, abort=stopped.set, dispose=Archive.close)

    async def received(self, name: str, pieces: AsyncIterator[bytes]) -> Archive:
        """Receives an archive, and opens it."""
        spool = await in_thread(self.executor, Spool, name, self.store, self.limits, dispose=Spool.close)
        try:
            async for piece in pieces:
                await in_thread(self.executor, spool.write, piece)
            return await self.opened(lambda is_stopped: archive_of(name, spool, is_stopped))
        finally:
            spool.close()


# --- docker


def docker_socket() -> str:
    """Where docker's daemon listens: ``DOCKER_HOST``, or the usual place.

    Raises:
        TransportError: it is no socket of this machine.
    """
    host = os.environ.get("DOCKER_HOST") or f"unix://{_DOCKER_SOCKET}"
    if not host.startswith("unix://"):
        advice = (
            "docker-daemon: needs a unix socket; on the daemon's machine, docker save and docker-archive: do the same"
        )
        raise TransportError("the docker daemon", f"DOCKER_HOST is {host.partition('://')[0]}://…", advice, False)
    return host.removeprefix("unix://")


async def export_from_docker(name: str, image: str, desk: Desk) -> Archive:
    """Has docker's daemon save an image.

    Args:
        name: of the source, for messages.
        image: reference or id, as docker knows it.
        desk: receives it.

    Raises:
        NotFound: the daemon has no such image.
        TransportError: there is no daemon, or it stops answering.
        UnexpectedAnswer: it refuses.

    Spec: Docker Engine API, ImageGet.
    """
    socket = docker_socket()
    async with _answer_of_docker(socket, f"/images/{quote(image, safe='/:@')}/get") as answer:
        if answer.status == 404:
            raise NotFound(f"image {image!r}", f"the docker daemon at {socket}", "docker images shows what it has")
        if answer.status != 200:
            complaint = (await answer.content.read(_MAX_COMPLAINT)).decode("utf-8", "replace")
            raise UnexpectedAnswer(f"the docker daemon at {socket}", " ".join(complaint.split())[:300], answer.status)
        return await desk.received(name, _pieces_of_docker(answer, socket))


@asynccontextmanager
async def _answer_of_docker(socket: str, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
    timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS, sock_read=_STALL_SECONDS)
    async with aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(socket), timeout=timeout, auto_decompress=False, read_bufsize=_CHUNK
    ) as session:
        with _errors_of(socket):
            answer = await session.get(URL(f"http://docker{path}", encoded=True), allow_redirects=False)
        async with answer:
            yield answer


async def _pieces_of_docker(answer: aiohttp.ClientResponse, socket: str) -> AsyncIterator[bytes]:
    while True:
        with _errors_of(socket):
            piece = await answer.content.read(_CHUNK)
        if not piece:
            return
        yield piece


@contextlib.contextmanager
def _errors_of(socket: str) -> Iterator[None]:
    def ours(error: BaseException) -> TransportError:
        inner = getattr(error, "os_error", None) or error
        reason = (getattr(inner, "strerror", None) or str(inner) or type(inner).__name__).lower()
        advice = "Is it running, and may you use its socket? DOCKER_HOST=unix://… names another"
        return TransportError(f"the docker daemon at {socket}", reason, advice, is_transient=False)

    with map_exceptions({aiohttp.ClientError: ours, TimeoutError: ours, OSError: ours}):
        yield


# --- containers-storage


async def export_from_podman(name: str, image: str, desk: Desk) -> Archive:
    """Has podman save an image of its storage.

    Args:
        name: of the source, for messages.
        image: reference or id, as podman knows it.
        desk: receives it.

    Raises:
        NotFound: the storage has no such image.
        TransportError: there is no podman, or it fails.
    """
    code, complaint = await _run_podman("image", "exists", "--", image)
    if code == 1:
        raise NotFound(f"image {image!r}", "containers-storage", "podman images shows what it has")
    if code:
        raise _failure(complaint)
    process = await _start_podman("save", "--quiet", "--format", "docker-archive", "--", image)
    complaints = asyncio.create_task(_drained(process.stderr))
    try:
        try:
            return await desk.received(name, _pieces_of_podman(process, complaints))
        finally:
            await _end(process)
    finally:
        complaints.cancel()


async def _pieces_of_podman(process: asyncio.subprocess.Process, complaints: Awaitable[bytes]) -> AsyncIterator[bytes]:
    assert process.stdout is not None
    while piece := await process.stdout.read(_CHUNK):
        yield piece
    if await process.wait():
        raise _failure(await complaints)


async def _run_podman(*arguments: str) -> tuple[int, bytes]:
    process = await _start_podman(*arguments)
    try:
        _, complaint = await process.communicate()
    finally:
        await _end(process)
    assert process.returncode is not None
    return process.returncode, complaint


async def _start_podman(*arguments: str) -> asyncio.subprocess.Process:
    nothing, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            "podman", *arguments, stdin=nothing, stdout=pipe, stderr=pipe, limit=_CHUNK
        )
    except OSError as error:
        advice = "containers-storage: is read through podman; with buildah alone, push the image to an oci-archive:"
        reason = f"podman cannot be started ({(error.strerror or '').lower()})"
        raise TransportError("containers-storage", reason, advice, is_transient=False) from error


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends a program that nobody waits for any more, and what it still wants to say."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _drained(stream: asyncio.StreamReader | None) -> bytes:
    """The last words of a stream, of which any number may come."""
    last = b""
    while stream is not None and (piece := await stream.read(_MAX_COMPLAINT)):
        last = (last + piece)[-_MAX_COMPLAINT:]
    return last


def _failure(complaint: bytes) -> TransportError:
    reason = " ".join(complaint.decode("utf-8", "replace").split())[-300:] or "podman failed"
    return TransportError("containers-storage", reason, is_transient=False)
