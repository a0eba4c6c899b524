"""Images in the storage of podman, buildah and CRI-O on this machine, saved by podman and streamed into a spool."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING

from fastpull.errors import NotFound, TransportError

if TYPE_CHECKING:
    from fastpull.sources.archive import Archive
    from fastpull.sources.archive_opener import ArchiveOpener

_CHUNK = 1 << 20
_MAX_ERROR_SIZE = 64 << 10
_CLEANUP_SECONDS = 2.0


async def export_from_podman(name: str, image: str, archive_opener: ArchiveOpener) -> Archive:
    """Export an image from the storage with podman.

    Args:
        name: source, for messages.
        image: reference or ID of the image in podman.
        archive_opener: receives the archive.

    Raises:
        NotFound: the storage has no such image.
        TransportError: podman is missing, or fails.
    """
    code, detail = await _run_podman("image", "exists", "--", image)
    if code == 1:
        raise NotFound(f"image {image!r}", "containers-storage", "podman images lists its images")
    if code:
        raise _failure(detail)
    process = await _start_podman("save", "--quiet", "--format", "docker-archive", "--", image)
    errors = asyncio.create_task(_drained(process.stderr))
    try:
        try:
            return await archive_opener.receive(name, _podman_chunks(process, errors))
        finally:
            await _end(process)
    finally:
        errors.cancel()


async def _podman_chunks(process: asyncio.subprocess.Process, errors: Awaitable[bytes]) -> AsyncIterator[bytes]:
    assert process.stdout is not None
    while piece := await process.stdout.read(_CHUNK):
        yield piece
    if await process.wait():
        raise _failure(await errors)


async def _run_podman(*arguments: str) -> tuple[int, bytes]:
    process = await _start_podman(*arguments)
    try:
        _, detail = await process.communicate()
    finally:
        await _end(process)
    assert process.returncode is not None
    return process.returncode, detail


async def _start_podman(*arguments: str) -> asyncio.subprocess.Process:
    nothing, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
    try:
        return await asyncio.create_subprocess_exec(
            "podman", *arguments, stdin=nothing, stdout=pipe, stderr=pipe, limit=_CHUNK
        )
    except OSError as error:
        advice = "containers-storage: needs podman; with buildah alone, push the image to an oci-archive:"
        reason = f"podman cannot be started ({(error.strerror or '').lower()})"
        raise TransportError("containers-storage", reason, advice, is_transient=False) from error


async def _end(process: asyncio.subprocess.Process) -> None:
    """Terminate a process that is no longer needed, after a moment for its cleanup."""
    for stop in (process.terminate, process.kill):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLEANUP_SECONDS):
                    await process.wait()


async def _drained(stream: asyncio.StreamReader | None) -> bytes:
    """Read a stream to its end, and return its last bytes."""
    last = b""
    while stream is not None and (piece := await stream.read(_MAX_ERROR_SIZE)):
        last = (last + piece)[-_MAX_ERROR_SIZE:]
    return last


def _failure(detail: bytes) -> TransportError:
    reason = " ".join(detail.decode("utf-8", "replace").split())[-300:] or "podman failed"
    return TransportError("containers-storage", reason, is_transient=False)
