"""Images of the docker daemon on this machine, exported as an archive that is streamed into a spool."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

import aiohttp
from yarl import URL

from fastpull.errors import ErrorMapping, NotFound, TransportError, UnexpectedAnswer, translate_errors

if TYPE_CHECKING:
    from fastpull.sources.archive import Archive
    from fastpull.sources.archive_opener import ArchiveOpener

_DOCKER_SOCKET = "/var/run/docker.sock"
_CONNECT_SECONDS = 10.0
_STALL_SECONDS = 600.0  # docker writes the whole image to its own disk before it sends the first byte
_CHUNK = 1 << 20
_MAX_ERROR_SIZE = 64 << 10


def docker_socket() -> str:
    """Return the path of the docker daemon's socket: from ``DOCKER_HOST``, or the default.

    Raises:
        TransportError: it is not a socket on this machine.
    """
    host = os.environ.get("DOCKER_HOST") or f"unix://{_DOCKER_SOCKET}"
    if not host.startswith("unix://"):
        advice = "docker-daemon: needs a unix socket; use docker save on the daemon's machine, and docker-archive:"
        raise TransportError("the docker daemon", f"DOCKER_HOST is {host.partition('://')[0]}://…", advice, False)
    return host.removeprefix("unix://")


async def export_from_docker(name: str, image: str, archive_opener: ArchiveOpener) -> Archive:
    """Export an image from the docker daemon.

    Args:
        name: source, for messages.
        image: reference or ID of the image in docker.
        archive_opener: receives the archive.

    Raises:
        NotFound: the daemon has no such image.
        TransportError: there is no daemon, or it stops responding.
        UnexpectedAnswer: the daemon refuses.

    Spec: Docker Engine API, ImageGet.
    """
    socket = docker_socket()
    async with _get_from_docker(socket, f"/images/{quote(image, safe='/:@')}/get") as response:
        if response.status == 404:
            raise NotFound(f"image {image!r}", f"the docker daemon at {socket}", "docker images lists its images")
        if response.status != 200:
            detail = (await response.content.read(_MAX_ERROR_SIZE)).decode("utf-8", "replace")
            raise UnexpectedAnswer(f"the docker daemon at {socket}", " ".join(detail.split())[:300], response.status)
        return await archive_opener.receive(name, _docker_chunks(response, socket))


@asynccontextmanager
async def _get_from_docker(socket: str, path: str) -> AsyncIterator[aiohttp.ClientResponse]:
    timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT_SECONDS, sock_read=_STALL_SECONDS)
    async with aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(socket), timeout=timeout, auto_decompress=False, read_bufsize=_CHUNK
    ) as session:
        with translate_errors(_docker_errors(socket)):
            response = await session.get(URL(f"http://docker{path}", encoded=True), allow_redirects=False)
        async with response:
            yield response


async def _docker_chunks(response: aiohttp.ClientResponse, socket: str) -> AsyncIterator[bytes]:
    while True:
        with translate_errors(_docker_errors(socket)):
            piece = await response.content.read(_CHUNK)
        if not piece:
            return
        yield piece


def _docker_errors(socket: str) -> ErrorMapping:
    def unavailable(error: BaseException) -> TransportError:
        inner = getattr(error, "os_error", None) or error
        reason = (getattr(inner, "strerror", None) or str(inner) or type(inner).__name__).lower()
        advice = "Is it running, and may you use its socket? DOCKER_HOST=unix://… names another"
        return TransportError(f"the docker daemon at {socket}", reason, advice, is_transient=False)

    return {aiohttp.ClientError: unavailable, TimeoutError: unavailable, OSError: unavailable}
