"""Blobs read through the cache: cached ones, and those being downloaded into it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpull.concurrency.threads import Aborted, in_thread

if TYPE_CHECKING:
    from fastpull.cache.partial.blob import PartialBlob
    from fastpull.cache.store import CachedBlob, Store
    from fastpull.concurrency.budget import ByteBudget
    from fastpull.config.settings import Settings
    from fastpull.telemetry.events import OnEvent


@dataclass(frozen=True, slots=True)
class SourceContext:
    """The resources shared by the registry sources of one client.

    Attributes:
        store: the cache.
        executor: threads for blocking calls on files.
        budget: memory budget.
        settings: settings of the client.
        on_event: receives events.
    """

    store: Store
    executor: Executor
    budget: ByteBudget
    settings: Settings
    on_event: OnEvent

    @property
    def sync(self) -> bool:
        """Whether blobs are on disk before they appear in the cache."""
        return self.settings.sync


class CacheBlob:
    """A blob present in the cache."""

    is_fresh = False
    is_cached = True
    is_remote = False

    def __init__(self, context: SourceContext, blob: CachedBlob) -> None:
        self.is_trusted = blob.is_own and blob.metadata is not None and blob.metadata.is_fresh
        self._context = context
        self._blob = blob
        self._aborted = False

    @property
    def present(self) -> int:
        """See `fastpull.sources.base.Blob`."""
        return self._blob.size

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """See `fastpull.sources.base.Blob`."""
        if self._aborted:
            raise Aborted
        return self._blob.readinto(buffer, offset)

    def abort(self) -> None:
        """See `fastpull.sources.base.Blob`."""
        self._aborted = True

    async def accept(self, fingerprint: str) -> None:
        """See `fastpull.sources.base.Blob`."""
        await in_thread(
            self._context.executor, self._context.store.refresh_metadata, self._blob, fingerprint, self._context.sync
        )

    async def reject(self) -> None:
        """See `fastpull.sources.base.Blob`."""
        await in_thread(self._context.executor, self._context.store.quarantine, self._blob.digest)


class DownloadingBlob:
    """A blob that is being downloaded into the cache.

    Args:
        context: resources of the source.
        partial: partial blob that the download fills.
        mark_corrupt: called for corrupt bytes of this pull; returns whether another endpoint is left.
    """

    is_cached = False
    is_remote = True
    is_trusted = False

    def __init__(self, context: SourceContext, partial: PartialBlob, mark_corrupt: Callable[[], bool]) -> None:
        self.is_fresh = partial.resumed == 0
        self._context = context
        self._partial = partial
        self._mark_corrupt = mark_corrupt

    @property
    def present(self) -> int:
        """See `fastpull.sources.base.Blob`."""
        return self._partial.written

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """See `fastpull.sources.base.Blob`."""
        return self._partial.readinto(buffer, offset)

    def abort(self) -> None:
        """See `fastpull.sources.base.Blob`."""
        self._partial.fail(Aborted())

    async def accept(self, fingerprint: str) -> None:
        """See `fastpull.sources.base.Blob`."""
        await in_thread(
            self._context.executor, self._context.store.publish, self._partial, fingerprint, self._context.sync
        )

    async def reject(self) -> None:
        """See `fastpull.sources.base.Blob`."""
        await in_thread(self._context.executor, self._partial.discard)
        if self.is_fresh and self._mark_corrupt():
            self.is_fresh = False
