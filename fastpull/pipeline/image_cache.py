"""Finished images: found in the cache, or made there by one for all who want them.

::

    key ─ pin ─> is nobody at it, and is it there? ── yes ──> done, without a lock
                              │ no
                 lock ─> is it there now? ── yes ──> done
                              │ no
                 build beside it ─ hash, seal ─ rename ─> done
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
    """Makes a file at a path, and returns the facts of its making as JSON has them."""


class ImageCache:
    """Gets finished images.

    Args:
        images: of the cache.
        files: for blocking calls.
        on_event: told that somebody else is at it.
    """

    def __init__(self, images: ImageStore, files: Executor, on_event: OnEvent) -> None:
        self._images = images
        self._files = files
        self._on_event = on_event

    async def find(self, key: ImageKey, source: str) -> FinishedImage | None:
        """The finished image, also if somebody is making it just now; None if it is not there."""
        return await self._get(key, source, None, sync=False)

    async def get(self, key: ImageKey, source: str, build: Build, *, sync: bool) -> FinishedImage:
        """The finished image, made if it is not there.

        Of all tasks and processes that want it, one makes it. The others wait, and take over if that one dies.

        Args:
            key: of the image.
            source: as the user wrote it.
            build: makes it; what a killed one has left at the path is to be replaced.
            sync: have it on its disk before it appears.

        Raises:
            FastpullError: what `build` raises, or the cache; nothing was published.
        """
        image = await self._get(key, source, build, sync=sync)
        assert image is not None, "it was built"
        return image

    async def drop(self, image: FinishedImage) -> None:
        """Takes a damaged image out of the cache."""
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
            if number == 1:  # longer than who only looks
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
                await in_thread(self._files, lock.check)  # who has taken over may have taken the draft away, too
                raise
        return image

    async def _look(self, key: ImageKey) -> FinishedImage | None:
        stopped = threading.Event()
        return await in_thread(self._files, self._images.find, key, stopped.is_set, abort=stopped.set)
