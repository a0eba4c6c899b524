"""The digest file: a file with the digest of the image's manifest, written when the output is complete."""

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
    """Create the staging of the file before the pull; yield the function that publishes the file.

    Args:
        path: path of the file; a regular file there is replaced. None for no file.
        executor: executor for blocking calls.
        keep_out: directories that the file must not be in.
        sync: whether the file is synchronised to its disk before it is published.

    Raises:
        OutputError: the file cannot be created; from the function, that it cannot be written.
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
