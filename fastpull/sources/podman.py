"""Images in the storage of podman, buildah and CRI-O on this machine: podman saves them, streamed into a spool."""

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
_MAX_COMPLAINT = 64 << 10
_CLEANUP_SECONDS = 2.0


async def export_from_podman(name: str, image: str, archive_opener: ArchiveOpener) -> Archive:
    """Has podman save an image of its storage.

    Args:
        name: of the source, for messages.
        image: reference or id, as podman knows it.
        archive_opener: receives it.

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
            return await archive_opener.receive(name, _pieces_of_podman(process, complaints))
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
    """Ends a program that nobody waits for any more; it may clean up for a moment."""
    for stop in (process.terminate, process.kill):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                stop()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLEANUP_SECONDS):
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
