"""An image source for all ranks of a job: rank 0 resolves the image, and the ranks exchange its blobs."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import xxhash

from fastpull.cache.refs import Ref
from fastpull.cluster.control.channel import ROOT
from fastpull.cluster.messages import Failure, ImageDocument, ImageDocuments, ImageResolved
from fastpull.concurrency.threads import in_thread
from fastpull.errors import Disagreement, FastpullError, MalformedDocument, RankFailed
from fastpull.oci.digest import Digest
from fastpull.oci.json import MAX_DOCUMENT_SIZE
from fastpull.sources.blobs import DownloadingBlob
from fastpull.sources.resolve import FetchedDocument, checked, resolve_image

if TYPE_CHECKING:
    from fastpull.cluster.build.artifacts import LayerArtifact
    from fastpull.cluster.build.member import BuildMember
    from fastpull.cluster.root.image_coordinator import ImageCoordinator
    from fastpull.cluster.root.image_task import ImageTask
    from fastpull.config.policy import Identity
    from fastpull.oci.descriptor import Descriptor
    from fastpull.oci.image import Image
    from fastpull.oci.platform import Platform
    from fastpull.oci.reference import Reference
    from fastpull.sources.base import Blob
    from fastpull.sources.blobs import SourceContext
    from fastpull.sources.registry import RegistrySource
    from fastpull.telemetry.timing import TimingScope


class _ExchangedBlob(DownloadingBlob):
    """A blob that arrives from the registry and from other ranks. A damaged one is not fetched again: the job fails."""

    is_remote = False

    def __init__(self, context: SourceContext, partial: Any) -> None:
        super().__init__(context, partial, lambda: False)
        self.is_fresh = True


class ClusterSource:
    """An image in a registry, for the ranks of a job.

    Args:
        registry: the source that a single node would use.
        reference: the reference of the image.
        context: the context of the client's sources.
        task: this rank's part of the image.
        members: the ranks that take part.
        coordinator: the coordinator of the image on rank 0; None on other ranks.
    """

    def __init__(
        self,
        registry: RegistrySource,
        reference: Reference,
        context: SourceContext,
        task: ImageTask,
        members: Sequence[int],
        coordinator: ImageCoordinator | None,
    ) -> None:
        self._registry = registry
        self._context = context
        self._reference = reference
        self._task = task
        self._members = members
        self._coordinator = coordinator

    @property
    def identity(self) -> Identity:
        """See `fastpull.sources.base.Source`."""
        return self._registry.identity

    async def resolve(self, platform: Platform) -> Image:
        """See `fastpull.sources.base.Source`. Rank 0 asks the registry; other ranks get and verify its documents."""
        task, registry, context = self._task, self._registry, self._context
        channel = task.channel
        if self._coordinator is None:
            message = await channel.receive(ImageResolved, task.number)
            if message.resolved is None:
                failure = message.failure or Failure(ROOT, "it did not resolve the image", 1)
                raise RankFailed(ROOT, channel.hosts.get(ROOT, "?"), failure.reason, failure.exit_code)
            image = await self._from_documents(message.resolved, platform)
            task.resolved(image, message.resolved.ranks, registry, context)
            return image
        try:
            image = await registry.resolve(platform)
            documents = await self._documents(image, platform)
        except FastpullError as error:
            self._coordinator.send_resolved(failure=Failure(ROOT, error.message, error.exit_code))
            raise
        task.resolved(image, self._coordinator.ranks, registry, context)
        self._coordinator.plan()
        self._coordinator.send_resolved(documents)
        return image

    @asynccontextmanager
    async def open_blob(self, descriptor: Descriptor, priority: int, timing: TimingScope) -> AsyncIterator[Blob]:
        """See `fastpull.sources.base.Source`."""
        blob = await self._task.blob(descriptor)
        if blob.partial is not None and not blob.is_settled:
            blob.is_settled = True  # a second reader finds it in the cache, or fetches it for this node alone
            yield _ExchangedBlob(self._context, blob.partial)
            return
        async with self._registry.open_blob(descriptor, priority, timing) as found:
            yield found

    @property
    def is_shared(self) -> bool:
        """Whether other ranks get the image as well."""
        return self._task.ranks > 1

    async def build(self, artifacts: Sequence[LayerArtifact]) -> BuildMember | None:
        """Build the artifacts of all layers together with the other ranks; see `ImageTask.build`."""
        return await self._task.build(artifacts)

    # --- documents

    async def _documents(self, image: Image, platform: Platform) -> ImageDocuments:
        """Read from rank 0's cache what it fetched to resolve the image."""
        store, executor = self._context.store, self._context.executor
        name, canonical = str(self._reference), str(platform.canonical)
        top = self._reference.digest
        if top is None:
            ref = await in_thread(executor, Ref.find, store.files, name, canonical)
            assert ref is not None  # stored when the image was resolved
            top = ref.top
        documents: list[ImageDocument] = []

        async def fetch(wanted: Descriptor | Digest) -> FetchedDocument:
            digest = wanted if isinstance(wanted, Digest) else wanted.digest
            body = await in_thread(executor, store.read_document, digest, MAX_DOCUMENT_SIZE)
            if body is None:
                raise MalformedDocument(name, f"the cache has lost {digest} again")
            documents.append(ImageDocument(str(digest), base64.b64encode(body).decode()))
            return FetchedDocument(digest, body, None if isinstance(wanted, Digest) else wanted.media_type)

        await resolve_image(name, await fetch(top), platform, fetch)
        ranks = self._coordinator.ranks if self._coordinator is not None else 0
        return ImageDocuments(str(image.digest), str(top), ranks, tuple(documents))

    async def _from_documents(self, resolved: ImageDocuments, platform: Platform) -> Image:
        """Resolve the image from rank 0's documents, and store them as if this rank had asked the registry."""
        store, executor, name = self._context.store, self._context.executor, str(self._reference)
        bodies = {document.digest: base64.b64decode(document.body) for document in resolved.documents}

        async def fetch(wanted: Descriptor | Digest) -> FetchedDocument:
            digest = wanted if isinstance(wanted, Digest) else wanted.digest
            if str(digest) not in bodies:
                reason = f"rank {ROOT} resolved {name} without {digest}, which this rank needs for {platform}"
                raise Disagreement(reason, "Name the platform with --platform")
            media_type = None if isinstance(wanted, Digest) else wanted.media_type
            document = checked(bodies[str(digest)], wanted, f"{digest} of {name}", media_type)
            fingerprint = xxhash.xxh3_64_hexdigest(document.body)
            await in_thread(executor, store.write_document, digest, document.body, fingerprint, self._context.sync)
            return document

        top = Digest.parse(resolved.top)
        image = await resolve_image(name, await fetch(top), platform, fetch)
        if str(image.digest) != resolved.digest:
            raise Disagreement(f"{name} is {image.digest} here, and {resolved.digest} on rank {ROOT}")
        ref = Ref.now(name, str(platform.canonical), image.digest, top)
        await in_thread(executor, ref.save, store.files)
        return image
