"""The file that gets an image's digest when its output is complete."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastpull.concurrency.threads import in_thread
from fastpull.concurrency.writes import pwrite_all
from fastpull.sinks.output.errors import output_errors
from fastpull.sinks.output.file_staging import FileStaging

if TYPE_CHECKING:
    from fastpull.oci.digest import Digest


@asynccontextmanager
async def prepared_digest_file(
    path: str | os.PathLike[str] | None, executor: Executor, keep_out: Sequence[str], *, sync: bool
) -> AsyncIterator[Callable[[Digest], Awaitable[None]]]:
    """Prepares the file, so that it can be written after the pull; gives the function that does so.

    Args:
        path: of the file; a regular file there is replaced, and nothing else. None for no file.
        executor: for blocking calls.
        keep_out: directories that the file is not to be in.
        sync: have it on its disk before it appears.

    Raises:
        OutputError: the file cannot be made; from the function: it cannot be written.
    """
    staging = None if path is None else FileStaging(path, force=True)

    def publish(digest: Digest) -> None:
        if staging is not None:
            with output_errors(staging.destination):
                pwrite_all(staging.fd, 0, [str(digest).encode()])  # without a line end, as podman and skopeo do
            staging.publish(sync)

    async def write(digest: Digest) -> None:
        await in_thread(executor, publish, digest)

    try:
        if staging is not None:
            await in_thread(executor, staging.create, keep_out)
        yield write
    finally:
        if staging is not None:
            await in_thread(executor, staging.remove)
