"""Finished images of the cache, built once for all tasks, processes and nodes that request them (single flight).

::

    not locked, and the image exists?  ── yes ──> done, without a lock
                    │ no
    lock; the image exists now?        ── yes ──> done
                    │ no
    build a draft ── hash, write its record ── rename ──> done
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from fastpull.cache.locking.file_lock import pauses
from fastpull.concurrency.threads import in_thread
from fastpull.errors import FastpullError, LockLost
from fastpull.telemetry.events import OnEvent, WaitingForImage, Warned

if TYPE_CHECKING:
    from fastpull.cache.images.store import FinishedImage, ImageKey, ImageStore
    from fastpull.cache.locking.file_lock import FileLock

    Build = Callable[[str], Awaitable[dict[str, Any]]]
    """Makes a file at a path, and returns facts about it as JSON values."""


class ImageCache:
    """Finds finished images in the cache, and builds missing ones.

    Args:
        images: the finished images of the cache.
        files: threads for blocking calls.
        on_event: receives an event while another process builds the image.
    """

    def __init__(self, images: ImageStore, files: Executor, on_event: OnEvent) -> None:
        self._images = images
        self._files = files
        self._on_event = on_event

    async def find(self, key: ImageKey, source: str) -> FinishedImage | None:
        """Return a finished image, after waiting for a process that is building it; None if there is none."""
        return await self._get(key, source, None, sync=False)

    async def get(self, key: ImageKey, source: str, build: Build, *, sync: bool) -> FinishedImage:
        """Return a finished image; build it if it does not exist.

        Of all tasks and processes that request it, one builds it. The others wait, and one of them takes over if the
        builder dies.

        Args:
            key: key of the image.
            source: the source as the user gave it.
            build: builds the image; it must replace a file that a killed process left at the path.
            sync: whether the file must be on its disk before it appears.

        Raises:
            FastpullError: `build` failed, or the cache cannot be used; nothing was published.
        """
        image = await self._get(key, source, build, sync=sync)
        assert image is not None, "it was built"
        return image

    async def drop(self, image: FinishedImage) -> None:
        """Remove a damaged image from the cache."""
        await in_thread(self._files, self._images.quarantine, image.key)

    async def _get(self, key: ImageKey, source: str, build: Build | None, *, sync: bool) -> FinishedImage | None:
        lock = self._images.lock(key)
        for number, pause in enumerate(pauses()):
            if not await in_thread(self._files, lambda: lock.exists):
                image = await self._look(key)
                if image is not None or build is None:
                    return image
            if await lock.try_acquire_async(self._files):
                try:
                    return await self._make(key, source, build, lock, sync=sync)
                except LockLost as error:
                    self._on_event(Warned(source, str(error)))
                finally:
                    await lock.release_async(self._files)
            if number == 1:  # a process that only looks holds the lock for less time
                self._on_event(WaitingForImage(source))
            await asyncio.sleep(pause)
        raise AssertionError("pauses never end")

    async def _make(
        self, key: ImageKey, source: str, build: Build | None, lock: FileLock, *, sync: bool
    ) -> FinishedImage | None:
        image = await self._look(key)
        if image is None and build is not None:
            try:
                with contextlib.ExitStack() as stack:
                    path = await in_thread(self._files, stack.enter_context, self._images.open_draft(key))
                    facts = await build(path)
                await in_thread(self._files, lock.check)
                image = await in_thread(self._files, self._images.publish, key, source, facts, sync)
            except FastpullError:
                await in_thread(self._files, lock.check)  # a process that took the lock over may have removed the draft
                raise
        return image

    async def _look(self, key: ImageKey) -> FinishedImage | None:
        stopped = threading.Event()
        return await in_thread(self._files, self._images.find, key, stopped.is_set, abort=stopped.set)
