"""Registries as a source: their blobs come through the cache."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from fastpull.cache.partial import Partial
from fastpull.cache.refs import Ref
from fastpull.errors import AccessDenied, NotFound, RegistryError, SizeMismatch, TransportError
from fastpull.meter import waiting
from fastpull.oci import media_types
from fastpull.oci.digest import Digest
from fastpull.oci.json import MAX_DOCUMENT_SIZE
from fastpull.progress import OnEvent, Waiting, Warned
from fastpull.registry.download import Download
from fastpull.sources.resolve import Document, checked, resolve_image
from fastpull.tasks import Aborted, Budget, in_thread, task_group
from fastpull.trace import Stage, Wait

if TYPE_CHECKING:
    from fastpull.cache.locks import FileLock
    from fastpull.cache.store import CachedBlob, Store
    from fastpull.meter import Part
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.image import Image
    from fastpull.oci.platform import Platform
    from fastpull.oci.reference import Reference
    from fastpull.registry.client import RegistryClient
    from fastpull.sources.base import Blob


@dataclass(frozen=True, slots=True)
class Means:
    """What the registry sources of one client share.

    Attributes:
        store: the cache.
        executor: for blocking calls on files.
        budget: of memory.
        sync: whether blobs are on their disk before they appear.
        pull: when to ask a registry: `fastpull.config.Settings.pull`.
        on_event: told what happens.
    """

    store: Store
    executor: Executor
    budget: Budget
    sync: bool
    pull: str
    on_event: OnEvent


class _Cached:
    """A blob that the cache has."""

    is_fresh = False
    is_cached = True

    def __init__(self, means: Means, blob: CachedBlob) -> None:
        self.is_trusted = blob.seal is not None and blob.seal.is_fresh
        self._means = means
        self._blob = blob
        self._aborted = False

    def readinto(self, buffer: memoryview, offset: int) -> int:
        if self._aborted:
            raise Aborted
        return self._blob.readinto(buffer, offset)

    def abort(self) -> None:
        self._aborted = True

    async def accept(self, fingerprint: str) -> None:
        await in_thread(self._means.executor, self._means.store.renew, self._blob, fingerprint)

    async def reject(self) -> None:
        await in_thread(self._means.executor, self._means.store.quarantine, self._blob.digest)


class _Coming:
    """A blob that is being downloaded into the cache."""

    is_cached = False
    is_trusted = False

    def __init__(self, means: Means, partial: Partial) -> None:
        self.is_fresh = partial.resumed == 0
        self._means = means
        self._partial = partial

    def readinto(self, buffer: memoryview, offset: int) -> int:
        return self._partial.readinto(buffer, offset)

    def abort(self) -> None:
        self._partial.fail(Aborted())

    async def accept(self, fingerprint: str) -> None:
        await in_thread(self._means.executor, self._means.store.publish, self._partial, fingerprint, self._means.sync)

    async def reject(self) -> None:
        await in_thread(self._means.executor, self._partial.discard)


class RegistrySource:
    """An image in a registry.

    Single flight: of all tasks and processes that want a blob, one downloads it. The others wait, read what it has
    published, or take over if it dies.
    """

    def __init__(self, client: RegistryClient, reference: Reference, means: Means) -> None:
        self._client = client
        self._reference = reference
        self._means = means

    async def resolve(self, platform: Platform) -> Image:
        """See `fastpull.sources.base.Source`. A reference with a digest needs no registry if the cache has it all.

        What a tag names is found out once: from there on everything is asked for by digest.
        """
        reference, known = self._reference, None
        if reference.digest is not None:
            top = await self._manifest(reference.digest, str(reference))
        else:
            known = await self._remembered(platform)
            top = await self._named_by_tag(platform, known)
        image = await resolve_image(str(reference), top, platform, self._fetch)
        if top is not known:
            ref = Ref.now(str(reference), str(platform.canonical), image.digest, top.digest)
            await in_thread(self._means.executor, ref.keep, self._means.store)
        return image

    async def _named_by_tag(self, platform: Platform, known: Document | None) -> Document:
        """What the tag names: as the registry says, or what is known, as the cache remembers it."""
        policy, on_event, name = self._means.pull, self._means.on_event, str(self._reference)
        if policy == "never" or (policy == "missing" and known is not None):
            if known is None:
                raise self._not_cached(f"{name} for {platform}")
            return known
        try:
            return await self._asked(known)
        except (TransportError, RegistryError, AccessDenied) as error:
            if known is None:
                raise
            if policy != "newer":
                on_event(
                    Warned(name, "the cache has what this was the last time; --pull newer or missing would use that")
                )
                raise
            on_event(Warned(name, f"what the cache has is used, because the registry does not tell: {error}"))
            return known

    async def _remembered(self, platform: Platform) -> Document | None:
        store, executor = self._means.store, self._means.executor
        ref = await in_thread(executor, Ref.find, store, str(self._reference), str(platform.canonical))
        body = await self._kept(ref.top) if ref else None
        return Document(ref.top, body, None) if ref and body is not None else None

    async def _asked(self, known: Document | None) -> Document:
        """What the registry says that the tag names; what is known is not fetched again."""
        repository, version = self._reference.repository, self._reference.version
        if known is not None:
            # who makes do with the cache does not wait long for a network that is not there
            digest = await self._client.manifest_digest(repository, version, retry=self._means.pull != "newer")
            if digest is not None:
                return await self._manifest(digest, str(self._reference))
        answer = await self._client.manifest(repository, version)
        return await self._keep(Document(Digest.of(answer.body), answer.body, answer.media_type))

    def _not_cached(self, subject: str) -> NotFound:
        advice = "With --pull never nothing is fetched; fetch it once with another policy, or where there is a network"
        return NotFound(subject, f"cache {self._means.store.root}", advice)

    def _check_may_fetch(self, subject: str) -> None:
        if self._means.pull == "never":
            raise self._not_cached(subject)

    async def _fetch(self, descriptor: Descriptor) -> Document:
        subject = f"{descriptor.digest} of {self._reference}"
        kept = await self._kept(descriptor.digest)
        if kept is not None:
            return checked(kept, descriptor, subject, descriptor.media_type)
        self._check_may_fetch(subject)
        if descriptor.media_type in media_types.CONFIGS:
            body = await self._client.blob(self._reference.repository, descriptor)
            return await self._keep(checked(body, descriptor, subject, descriptor.media_type))
        return await self._keep(await self._manifest_from_registry(descriptor, subject))

    async def _manifest(self, digest: Digest, subject: str) -> Document:
        kept = await self._kept(digest)
        if kept is not None:
            return Document(digest, kept, None)
        self._check_may_fetch(f"manifest {digest}")
        return await self._keep(await self._manifest_from_registry(digest, subject))

    async def _manifest_from_registry(self, expected: Descriptor | Digest, subject: str) -> Document:
        digest = expected if isinstance(expected, Digest) else expected.digest
        answer = await self._client.manifest(self._reference.repository, str(digest))
        return checked(answer.body, expected, subject, answer.media_type)

    async def _kept(self, digest: Digest) -> bytes | None:
        return await in_thread(self._means.executor, self._means.store.read_document, digest, MAX_DOCUMENT_SIZE)

    async def _keep(self, document: Document) -> Document:
        fingerprint = xxhash.xxh3_64_hexdigest(document.body)
        await in_thread(
            self._means.executor,
            self._means.store.write_document,
            document.digest,
            document.body,
            fingerprint,
            self._means.sync,
        )
        return document

    @asynccontextmanager
    async def open_blob(self, descriptor: Descriptor, rank: int, part: Part) -> AsyncIterator[Blob]:
        """See `fastpull.sources.base.Source`."""
        cached = await self._find(descriptor)
        if cached is None:
            lock = self._means.store.lock(descriptor.digest)
            if not lock.try_acquire():
                self._means.on_event(Waiting(str(self._reference), descriptor.digest))
                with part.lane(Stage.DOWNLOAD) as lane, waiting(lane, Wait.OTHERS):
                    await lock.acquire()
            try:
                cached = await self._find(descriptor)  # published while we waited
                if cached is None:
                    async with self._download(descriptor, rank, lock, part) as coming:
                        yield coming
                    return
            finally:
                lock.release()
        try:
            yield _Cached(self._means, cached)
        finally:
            cached.close()

    async def _find(self, descriptor: Descriptor) -> CachedBlob | None:
        store, executor = self._means.store, self._means.executor
        blob = await in_thread(executor, store.find, descriptor.digest, dispose=_close)
        if blob is None or blob.size == descriptor.size:
            return blob
        blob.close()
        if blob.seal is not None:  # it is what it was when it was verified: the descriptor is wrong
            raise SizeMismatch(f"blob {descriptor.digest}", descriptor.size, blob.size)
        await in_thread(executor, store.quarantine, descriptor.digest)
        return None

    @asynccontextmanager
    async def _download(self, descriptor: Descriptor, rank: int, lock: FileLock, part: Part) -> AsyncIterator[Blob]:
        self._check_may_fetch(f"blob {descriptor.digest} of {self._reference}")
        means = self._means
        stopped = threading.Event()
        partial = await in_thread(
            means.executor,
            means.store.begin,
            descriptor.digest,
            descriptor.size,
            lock,
            stopped.is_set,
            abort=stopped.set,
            dispose=Partial.close,
        )
        download = Download(
            self._client,
            self._reference.repository,
            descriptor,
            partial,
            rank=rank,
            budget=means.budget,
            executor=means.executor,
            part=part,
        )
        try:
            async with task_group() as group:  # a failed download ends at once what is done with the blob
                group.create_task(download.run())
                yield _Coming(means, partial)
        finally:
            partial.close()


def _close(blob: CachedBlob | None) -> None:
    if blob is not None:
        blob.close()
