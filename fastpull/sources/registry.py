"""Registries as a source: their blobs come through the cache."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import xxhash

from fastpull.cache.job_tag_cache import JobTagCache, TagQuery
from fastpull.cache.partial.blob import PartialBlob
from fastpull.cache.refs import Ref
from fastpull.concurrency.threads import Aborted, in_thread, task_group
from fastpull.config.policy import Identity
from fastpull.errors import (
    AccessDenied,
    CacheError,
    DigestMismatch,
    NotFound,
    RegistryError,
    SizeMismatch,
    TransportError,
)
from fastpull.oci import media_types
from fastpull.oci.digest import Digest
from fastpull.oci.json import MAX_DOCUMENT_SIZE
from fastpull.registry.download.download import Download
from fastpull.registry.http.retry import RETRY_TIMEOUTS
from fastpull.sources.blobs import CacheBlob, DownloadingBlob
from fastpull.sources.resolve import FetchedDocument, checked, resolve_image
from fastpull.telemetry.events import Waiting, Warned
from fastpull.telemetry.timing import waiting
from fastpull.telemetry.trace import Stage, Wait

if TYPE_CHECKING:
    from fastpull.cache.locking.file_lock import FileLock
    from fastpull.cache.store import CachedBlob
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.image import Image
    from fastpull.oci.platform import Platform
    from fastpull.oci.reference import Reference
    from fastpull.registry.download.download import DownloadTarget
    from fastpull.registry.endpoints import Endpoint, Endpoints
    from fastpull.sources.base import Blob
    from fastpull.sources.blobs import SourceContext
    from fastpull.telemetry.timing import TimingScope

_ANSWER_SECONDS = 30.0
"""Time to wait for another process of the job to resolve a tag, before this process queries the registry itself."""


class RegistrySource:
    """An image in a registry or its mirrors.

    A tag is resolved by the first endpoint that has it. Content named by a digest may come from any endpoint, and the
    bytes of one blob from several. A mirror that served corrupt bytes is not used for that blob again.

    Single flight: of all tasks and processes that need a blob, one downloads it. The others wait, then read the
    published blob, or take over after the death of the first.
    """

    def __init__(self, endpoints: Endpoints, reference: Reference, context: SourceContext) -> None:
        self._endpoints = endpoints
        self._reference = reference
        self._context = context
        self._corrupt_mirrors: dict[Digest, set[Endpoint]] = {}

    @property
    def identity(self) -> Identity:
        """The reference as the user gave it, whichever mirror has the image. See `fastpull.sources.base.Source`."""
        return Identity.of_reference(self._reference)

    async def resolve(self, platform: Platform) -> Image:
        """See `fastpull.sources.base.Source`. A reference with a digest needs no registry if everything is cached.

        A tag is resolved once; all further requests are by digest.
        """
        if self._reference.digest is not None:
            return await self._image(await self._fetch(self._reference.digest), platform, remember=True)
        known, settings = await self._remembered(platform), self._context.settings
        needs_registry = settings.pull in ("always", "newer") or (settings.pull == "missing" and known is None)
        if settings.job and needs_registry:
            return await self._resolve_for_job(platform, known)
        image, _ = await self._image_of_tag(platform, known)
        return image

    async def _image(self, top: FetchedDocument, platform: Platform, *, remember: bool) -> Image:
        image = await resolve_image(str(self._reference), top, platform, self._fetch)
        if remember:
            ref = Ref.now(str(self._reference), str(platform.canonical), image.digest, top.digest)
            await in_thread(self._context.executor, ref.save, self._context.store.files)
        return image

    async def _image_of_tag(self, platform: Platform, known: FetchedDocument | None) -> tuple[Image, FetchedDocument]:
        top = await self._resolve_tag(platform, known)
        return await self._image(top, platform, remember=top is not known), top

    async def _resolve_for_job(self, platform: Platform, known: FetchedDocument | None) -> Image:
        """Resolve a tag once for all processes of a job: one queries the registry, and the others use its result."""
        access, executor = self._context.settings.access, self._context.executor
        settings = (
            access.username,
            access.registry,
            access.authfile or "",
            self._context.settings.registries_conf or "",
        )
        query = TagQuery(self._context.settings.job, (str(self._reference), str(platform.canonical), *settings))
        tags = JobTagCache(self._context.store.files)
        lock = tags.lock(query)
        if image := await self._image_from_job(tags, query, platform):
            return image
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                await lock.acquire(executor)
        try:
            if image := await self._image_from_job(tags, query, platform):
                return image
            image, top = await self._image_of_tag(platform, known)
            if lock.held and top is not known:
                await in_thread(executor, tags.save, query, top.digest)
            return image
        finally:
            await lock.release_async(executor)

    async def _image_from_job(self, tags: JobTagCache, query: TagQuery, platform: Platform) -> Image | None:
        digest = await in_thread(self._context.executor, tags.find, query)
        body = await self._read_cached(digest) if digest is not None else None
        if digest is None or body is None:
            return None
        return await self._image(FetchedDocument(digest, body, None), platform, remember=False)

    async def _resolve_tag(self, platform: Platform, known: FetchedDocument | None) -> FetchedDocument:
        """Return the document that the tag names, from the registry or from the cache, as the pull policy says."""
        policy, on_event, name = self._context.settings.pull, self._context.on_event, str(self._reference)
        if policy == "never" or (policy == "missing" and known is not None):
            if known is None:
                raise self._not_cached(f"{name} for {platform}")
            return known
        try:
            return await self._query_registry(known)
        except (TransportError, RegistryError, AccessDenied) as error:
            if known is None:
                raise
            if policy != "newer":
                on_event(
                    Warned(
                        name, "the cache has an earlier resolution of this tag; --pull newer or --pull missing uses it"
                    )
                )
                raise
            on_event(Warned(name, f"using the cached image, because the registry cannot be queried: {error}"))
            return known

    async def _remembered(self, platform: Platform) -> FetchedDocument | None:
        store, executor = self._context.store, self._context.executor
        ref = await in_thread(executor, Ref.find, store.files, str(self._reference), str(platform.canonical))
        body = await self._read_cached(ref.top) if ref else None
        return FetchedDocument(ref.top, body, None) if ref and body is not None else None

    async def _query_registry(self, known: FetchedDocument | None) -> FetchedDocument:
        """Return the document that the registry names for the tag; a cached document is not fetched again."""
        version = self._reference.version
        if known is not None:
            # with --pull newer, the cache serves at once if the network is down
            retry = self._context.settings.pull != "newer"
            digest = await self._digest_of_tag(version, retry=retry)
            if digest is not None:
                return await self._fetch(digest)
        candidates = self._endpoints.candidates()
        for endpoint in candidates:
            with candidates.failover():
                found = await endpoint.manifest(version)
                break
        else:
            raise candidates.error
        return await self._write_cached(FetchedDocument(Digest.of(found.body), found.body, found.media_type))

    async def _digest_of_tag(self, tag: str, *, retry: bool) -> Digest | None:
        candidates = self._endpoints.candidates()
        for endpoint in candidates:
            with candidates.failover():
                return await endpoint.manifest_digest(tag, retry=retry)
        raise candidates.error

    def _not_cached(self, subject: str) -> NotFound:
        advice = "--pull never fetches nothing; pull once with another policy, or on a machine with network access"
        return NotFound(subject, f"cache {self._context.store.root}", advice)

    def _check_may_fetch(self, subject: str) -> None:
        if self._context.settings.pull == "never":
            raise self._not_cached(subject)

    async def _fetch(self, expected: Descriptor | Digest) -> FetchedDocument:
        """Return a document from the cache. If it is missing, one of the interested processes fetches it."""
        digest = expected if isinstance(expected, Digest) else expected.digest
        subject = str(self._reference) if digest == self._reference.digest else f"{digest} of {self._reference}"
        cached = await self._read_cached(digest)
        if cached is None:
            self._check_may_fetch(subject)
            lock = self._context.store.lock(digest)
            await lock.acquire(self._context.executor)
            try:
                cached = await self._read_cached(digest)
                if cached is None:
                    return await self._write_cached(
                        await self._fetch_with_retry(lambda: self._fetch_from_registry(expected, subject))
                    )
            finally:
                await lock.release_async(self._context.executor)
        return checked(cached, expected, subject, None if isinstance(expected, Digest) else expected.media_type)

    async def _fetch_with_retry(self, fetch: Callable[[], Awaitable[FetchedDocument]]) -> FetchedDocument:
        """Fetch a document, and once more if it was corrupt."""
        try:
            return await fetch()
        except (DigestMismatch, SizeMismatch) as error:
            message = f"received a corrupt document, fetching it again ({error})"
            self._context.on_event(Warned(str(self._reference), message))
            return await fetch()

    async def _fetch_from_registry(self, expected: Descriptor | Digest, subject: str) -> FetchedDocument:
        candidates = self._endpoints.candidates()
        for endpoint in candidates:
            with candidates.failover():
                if not isinstance(expected, Digest) and expected.media_type in media_types.CONFIGS:
                    return checked(await endpoint.blob(expected), expected, subject, expected.media_type)
                found = await endpoint.manifest(str(expected if isinstance(expected, Digest) else expected.digest))
                return checked(found.body, expected, subject, found.media_type)
        raise candidates.error

    async def _read_cached(self, digest: Digest) -> bytes | None:
        store, sync = self._context.store, self._context.sync
        return await in_thread(
            self._context.executor, lambda: store.read_document(digest, MAX_DOCUMENT_SIZE, sync=sync)
        )

    async def _write_cached(self, document: FetchedDocument) -> FetchedDocument:
        fingerprint = xxhash.xxh3_64_hexdigest(document.body)
        await in_thread(
            self._context.executor,
            self._context.store.write_document,
            document.digest,
            document.body,
            fingerprint,
            self._context.sync,
        )
        return document

    @asynccontextmanager
    async def open_blob(self, descriptor: Descriptor, priority: int, timing: TimingScope) -> AsyncIterator[Blob]:
        """See `fastpull.sources.base.Source`."""
        cached = await self.find(descriptor)
        if cached is None:
            lock = self._context.store.lock(descriptor.digest)
            if not await lock.try_acquire_async(self._context.executor):
                self._context.on_event(Waiting(str(self._reference), descriptor.digest))
                with timing.lane(Stage.DOWNLOAD) as lane, waiting(lane, Wait.OTHERS):
                    await lock.acquire(self._context.executor)
            try:
                cached = await self.find(descriptor)  # published during the wait
                if cached is None:
                    async with self._download(descriptor, priority, lock, timing) as coming:
                        yield coming
                    return
            finally:
                await lock.release_async(self._context.executor)
        try:
            yield CacheBlob(self._context, cached)
        finally:
            cached.close()

    async def find(self, descriptor: Descriptor) -> CachedBlob | None:
        """Return a blob if the cache has it. The caller closes it.

        Raises:
            SizeMismatch: the descriptor states another size.
        """
        store, executor = self._context.store, self._context.executor
        blob = await in_thread(executor, store.find, descriptor.digest, dispose=_close)
        if blob is None or blob.size == descriptor.size:
            return blob
        blob.close()
        if blob.metadata is not None:  # the blob is as verified, so the descriptor is wrong
            raise SizeMismatch(f"blob {descriptor.digest}", descriptor.size, blob.size)
        await in_thread(executor, store.quarantine, descriptor.digest)
        return None

    @asynccontextmanager
    async def _download(
        self, descriptor: Descriptor, priority: int, lock: FileLock, timing: TimingScope
    ) -> AsyncIterator[Blob]:
        self._check_may_fetch(f"blob {descriptor.digest} of {self._reference}")
        context = self._context
        stopped = threading.Event()
        try:
            partial = await in_thread(
                context.executor,
                context.store.begin,
                descriptor.digest,
                descriptor.size,
                lock,
                stopped.is_set,
                abort=stopped.set,
                dispose=PartialBlob.close,
            )
        except CacheError as error:
            if error.errno == errno.ENOSPC:
                error.asked = f"blob {descriptor.digest} of {self._reference}, as large as its manifest says"
            raise
        contributors: set[Endpoint] = set()

        def mark_corrupt() -> bool:
            return self._mark_corrupt(descriptor, contributors)

        async def download() -> None:
            try:
                await self._fetch_blob(descriptor, partial, priority, timing, contributors=contributors)
            except BaseException:
                partial.fail(Aborted())  # the group cancels the reader; its thread must not wait for that
                raise

        try:
            async with task_group() as group:  # a failed download cancels the use of the blob at once
                group.create_task(download())
                yield DownloadingBlob(context, partial, mark_corrupt)
        finally:
            await in_thread(context.executor, partial.close)

    async def fetch(
        self, descriptor: Descriptor, target: DownloadTarget, priority: int, timing: TimingScope, *, is_all: bool
    ) -> None:
        """Fetch the ranges of a blob that a target lacks.

        Args:
            descriptor: descriptor of the blob.
            target: receives the unverified bytes.
            priority: see `open_blob`.
            timing: see `open_blob`.
            is_all: whether the target accepts all bytes of the blob; otherwise it needs a part.

        Raises:
            FastpullError: every endpoint failed. The target keeps the bytes received.
            RangesIgnored: a part was requested, and the host only serves whole blobs.
        """
        self._check_may_fetch(f"blob {descriptor.digest} of {self._reference}")
        await self._fetch_blob(descriptor, target, priority, timing, is_partial=not is_all)

    async def _fetch_blob(
        self,
        descriptor: Descriptor,
        target: DownloadTarget,
        priority: int,
        timing: TimingScope,
        *,
        is_partial: bool = False,
        contributors: set[Endpoint] | None = None,
    ) -> None:
        """Fetch the missing ranges from one endpoint after the other; add those that brought bytes to a set."""
        candidates = self._endpoints.candidates(without=self._corrupt_mirrors.get(descriptor.digest, ()))
        for endpoint in candidates:
            missing = target.gaps()
            try:
                with candidates.failover():
                    await self._fetch_from(endpoint, descriptor, target, priority, timing, is_partial=is_partial)
                    return
            finally:
                if contributors is not None and target.gaps() != missing:
                    contributors.add(endpoint)
        error = candidates.error
        if not isinstance(error, NotFound) or not descriptor.is_nondistributable:
            raise error
        urls = ", ".join(descriptor.urls) or "no URL"
        advice = f"Its author does not allow registries to distribute it, and names {urls}, which fastpull never uses"
        raise NotFound(f"non-distributable layer {descriptor.digest}", error.where, advice) from error

    async def _fetch_from(
        self,
        endpoint: Endpoint,
        descriptor: Descriptor,
        target: DownloadTarget,
        priority: int,
        timing: TimingScope,
        *,
        is_partial: bool,
    ) -> None:
        download = Download(
            endpoint.client,
            endpoint.repository,
            descriptor,
            target,
            priority=priority,
            budget=self._context.budget,
            executor=self._context.executor,
            timing=timing,
            is_partial=is_partial,
            honor_retry_after=not endpoint.is_mirror,
        )
        access = self._context.settings.access
        retries = min(1, access.retries) if endpoint.is_mirror else access.retries
        total_seconds = RETRY_TIMEOUTS * access.timeout
        download.backoff = replace(download.backoff, attempts=1 + retries, total_seconds=total_seconds)
        await download.run()

    def _mark_corrupt(self, descriptor: Descriptor, contributors: set[Endpoint]) -> bool:
        """Exclude the mirrors that contributed wrong bytes; return whether another endpoint is left."""
        corrupt = self._corrupt_mirrors.setdefault(descriptor.digest, set())
        found = {endpoint for endpoint in contributors if endpoint.is_mirror} - corrupt
        corrupt |= found
        for endpoint in found:
            endpoint.start_cooldown()
            message = f"wrong bytes of {descriptor.digest} came from {endpoint}, which is not used for it again"
            self._context.on_event(Warned(str(self._reference), message))
        return bool(found) and self._endpoints.has_others(corrupt)


def _close(blob: CachedBlob | None) -> None:
    if blob is not None:
        blob.close()
