"""An image that the ranks of a job get together: resolved once, and its blobs exchanged."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import xxhash

from fastpull.cache.refs import Ref
from fastpull.cluster.control.channel import ROOT
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


class _Exchanged(DownloadingBlob):
    """A blob that comes from the registry and from other ranks. A wrong one does not come again: the job says so."""

    is_remote = False

    def __init__(self, context: SourceContext, coming: Any) -> None:
        super().__init__(context, coming, lambda: False)
        self.is_fresh = True


class ClusterSource:
    """An image in a registry, for the ranks of a job.

    Args:
        registry: as one node alone would ask it.
        reference: of the image.
        context: of the registry sources of this client.
        errand: this rank's part of the image.
        members: the ranks that take part.
        lead: what rank 0 decides; None on other ranks.
    """

    def __init__(
        self,
        registry: RegistrySource,
        reference: Reference,
        context: SourceContext,
        errand: ImageTask,
        members: Sequence[int],
        lead: ImageCoordinator | None,
    ) -> None:
        self._registry = registry
        self._context = context
        self._reference = reference
        self._errand = errand
        self._members = members
        self._lead = lead

    @property
    def identity(self) -> Identity:
        """See `fastpull.sources.base.Source`."""
        return self._registry.identity

    async def resolve(self, platform: Platform) -> Image:
        """See `fastpull.sources.base.Source`. The root asks; all others get its documents, and verify them."""
        errand, registry, context = self._errand, self._registry, self._context
        council, topic = errand.council, f"{errand.number}.documents"
        if self._lead is None:
            said = await council.spread(topic)
            if "error" in said:
                raise RankFailed(ROOT, council.hosts.get(ROOT, "?"), said["error"], said["exit_code"])
            image = await self._from_documents(said, platform)
            errand.resolved(image, said["ranks"], registry, context)
            return image
        try:
            image = await registry.resolve(platform)
            said = await self._documents(image, platform)
        except FastpullError as error:
            said = {"error": error.message, "exit_code": error.exit_code}
            await council.spread(topic, said, self._members)
            raise
        errand.resolved(image, self._lead.ranks, registry, context)
        self._lead.plan()
        said["ranks"] = self._lead.ranks
        await council.spread(topic, said, self._members)
        return image

    @asynccontextmanager
    async def open_blob(self, descriptor: Descriptor, rank: int, part: TimingScope) -> AsyncIterator[Blob]:
        """See `fastpull.sources.base.Source`."""
        shelf = await self._errand.shelf(descriptor)
        if shelf.partial is not None and not shelf.is_settled:
            shelf.is_settled = True  # whoever opens it once more finds it in the cache, or gets it alone
            yield _Exchanged(self._context, shelf.partial)
            return
        async with self._registry.open_blob(descriptor, rank, part) as blob:
            yield blob

    @property
    def is_shared(self) -> bool:
        """Whether others get the image as well."""
        return self._errand.ranks > 1

    async def build(self, products: Sequence[LayerArtifact]) -> BuildMember | None:
        """Takes part in making something of all layers with the other ranks; see `ImageTask.build`."""
        return await self._errand.build(products)

    # --- documents

    async def _documents(self, image: Image, platform: Platform) -> dict[str, Any]:
        """What the root has read to resolve the image, out of its cache."""
        store, executor = self._context.store, self._context.executor
        name, canonical = str(self._reference), str(platform.canonical)
        top = self._reference.digest
        if top is None:
            ref = await in_thread(executor, Ref.find, store.files, name, canonical)
            assert ref is not None  # it was kept a moment ago
            top = ref.top
        read: list[dict[str, str]] = []

        async def fetch(wanted: Descriptor | Digest) -> FetchedDocument:
            digest = wanted if isinstance(wanted, Digest) else wanted.digest
            body = await in_thread(executor, store.read_document, digest, MAX_DOCUMENT_SIZE)
            if body is None:
                raise MalformedDocument(name, f"the cache has lost {digest} again")
            read.append({"digest": str(digest), "body": base64.b64encode(body).decode()})
            return FetchedDocument(digest, body, None if isinstance(wanted, Digest) else wanted.media_type)

        await resolve_image(name, await fetch(top), platform, fetch)
        return {"image": str(image.digest), "top": str(top), "documents": read}

    async def _from_documents(self, said: dict[str, Any], platform: Platform) -> Image:
        """The image of the documents that the root has sent; they are kept, as if this rank had asked."""
        store, executor, name = self._context.store, self._context.executor, str(self._reference)
        bodies: dict[str, bytes] = {one["digest"]: base64.b64decode(one["body"]) for one in said["documents"]}

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

        top = Digest.parse(said["top"])
        image = await resolve_image(name, await fetch(top), platform, fetch)
        if str(image.digest) != said["image"]:
            raise Disagreement(f"{name} is {image.digest} here, and {said['image']} on rank {ROOT}")
        ref = Ref.now(name, str(platform.canonical), image.digest, top)
        await in_thread(executor, ref.save, store.files)
        return image
