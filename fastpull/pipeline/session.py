"""The session of a client: everything that is open between entering and leaving it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from fastpull import pipeline
from fastpull.cache.images.store import ImageKey, ImageStore
from fastpull.cache.locking.mounts import local_lock_option
from fastpull.cache.locking.shared_semaphore import SharedSemaphore
from fastpull.cache.store import Store
from fastpull.concurrency.budget import ByteBudget
from fastpull.concurrency.memory import LAYER_COST
from fastpull.concurrency.semaphores import PrioritySemaphore
from fastpull.concurrency.threads import in_thread
from fastpull.config.policy import load_policy
from fastpull.errors import AccessDenied, NotFound
from fastpull.oci.platform import Platform
from fastpull.pipeline.image_cache import ImageCache
from fastpull.pipeline.threads import Threads
from fastpull.registry.conf.load import load_registries_conf
from fastpull.registry.http.transport import Transport
from fastpull.registry.pool import RegistryPool
from fastpull.sinks.base import Resources
from fastpull.sources.archive_opener import ArchiveOpener
from fastpull.sources.blobs import SourceContext
from fastpull.sources.local import local_advice
from fastpull.sources.open import SourceFactory
from fastpull.sources.registry import RegistrySource
from fastpull.telemetry.events import Resolved, Warned

if TYPE_CHECKING:
    from fastpull.cluster.root.cluster import Cluster
    from fastpull.config.policy import Policy
    from fastpull.config.settings import Settings
    from fastpull.oci.image import Image
    from fastpull.pipeline.context import PullContext
    from fastpull.registry.auth.keyring import Keyring
    from fastpull.sinks.squashfs.recipe import Recipe
    from fastpull.sources.base import Source
    from fastpull.telemetry.events import OnEvent

_MANY_CORES = 4  # with two, hashing on a separate thread made pulls into a directory 6 % slower, and none faster
_FILE_THREADS = 8  # more than the writes that a disk accepts at a time


@dataclass(frozen=True)
class Session:
    """What a client has open; made by `open_session`.

    Attributes:
        settings: the settings of the client.
        on_event: receives all events.
        threads: the threads of the session.
        store: the cache.
        images: the finished images of the cache.
        budget: bytes that downloads may hold in memory.
        resources: resources for sinks.
        policy: the sources that may be pulled.
        registries: the clients of registries.
        source_factory: opens sources.
        cluster: the cluster that this client is a node of; None outside a cluster.
    """

    settings: Settings
    on_event: OnEvent
    threads: Threads
    store: Store
    images: ImageCache
    budget: ByteBudget
    resources: Resources
    policy: Policy
    registries: RegistryPool
    source_factory: SourceFactory
    cluster: Cluster | None

    @cached_property
    def context(self) -> PullContext:
        """The resources of pulls; a finished image needs none, so that their modules load on first use."""
        return pipeline.make_context(self.threads, self.store, self.budget, self.settings, self.on_event)

    def source(self, text: str) -> Source:
        """Return the source that a text names; nothing is opened yet."""
        return self.source_factory.open(text)

    async def with_scheme(self, source: str | Image) -> str | Image:
        """Return a source with its scheme; an image stays as it is."""
        return await self.source_factory.with_scheme(source) if isinstance(source, str) else source

    def check_policy(self, source: str | Image) -> None:
        """Raise Forbidden if the policy does not admit a source."""
        self.policy.check(self.source(source if isinstance(source, str) else source.source).identity)

    async def resolve(self, source: str, platform: str | Platform | None) -> Image:
        """Return the image that a source names; see `fastpull.Client.resolve`."""
        if platform is None:
            platform = Platform.of_host()
        elif isinstance(platform, str):
            platform = Platform.parse(platform)
        source = await self.source_factory.with_scheme(source)
        try:
            image = await self.source(source).resolve(platform)
        except (NotFound, AccessDenied) as error:
            advice = await in_thread(self.threads.files, local_advice, source)
            error.advice = ". ".join(filter(None, (error.advice, advice)))
            raise
        for warning in image.warnings:
            self.warn(source, warning)
        self.on_event(Resolved(image))
        return image

    def image_key(self, image: Image, recipe: Recipe) -> ImageKey:
        """Return the key of a finished image in the cache."""
        is_trusted = self.settings.share_images or not self.store.files.is_shared
        maker = None if is_trusted else os.geteuid()
        return ImageKey(image.digest, str(image.platform), recipe.facts(image.source), maker)

    def warn(self, subject: str, message: str) -> None:
        """Send a warning event."""
        self.on_event(Warned(subject, message))


@contextlib.asynccontextmanager
async def open_session(
    settings: Settings, keyring: Keyring, on_event: OnEvent, cluster: Cluster | None
) -> AsyncIterator[Session]:
    """Open the cache, the connections and the threads of a client, and close them at the end.

    Raises:
        CacheError: the cache cannot be created.
        InvalidSetting: a file that the settings name is malformed.
    """
    async with contextlib.AsyncExitStack() as stack:
        files = stack.enter_context(ThreadPoolExecutor(_FILE_THREADS, "fastpull-files"))
        # a layer waits for its download, so that both must never draw on the same memory: each has its share
        layers = max(1, min(settings.workers, settings.memory // 4 // LAYER_COST))
        resources = Resources(settings.workers, layers, settings.memory // 4, settings.sync)
        budget = ByteBudget(settings.memory - resources.memory - layers * LAYER_COST)
        workers = stack.enter_context(ThreadPoolExecutor(layers, "fastpull-layer"))
        helpers = stack.enter_context(ThreadPoolExecutor(layers + settings.workers, "fastpull-helper"))
        store = await in_thread(files, Store, settings.cache, settings.locks)
        if settings.locks == "flock" and (option := await in_thread(files, local_lock_option, store.root)):
            message = f"locks of this filesystem ({option}) hold on this node only: use --locks auto or lease"
            on_event(Warned(settings.cache, message))
        conf = await in_thread(files, load_registries_conf, settings.registries_conf)
        policy = await in_thread(files, load_policy, settings.policy)
        transport = await stack.enter_async_context(Transport(settings.access))
        site = settings.site_connections
        site_permits = None if site is None else SharedSemaphore(store.connection_permit, site, files)
        if site_permits is not None:
            stack.push_async_callback(site_permits.close)
        connection_permit = contextlib.nullcontext if site_permits is None else site_permits.hold
        registries = RegistryPool(settings, transport, keyring, conf, connection_permit, on_event)
        context = SourceContext(store, files, budget, settings, on_event)
        registry_source = partial(_registry_source, registries, context, cluster)
        source_factory = SourceFactory(registry_source, ArchiveOpener(store, files, settings.limits))
        stack.callback(source_factory.archives.close)
        yield Session(
            settings,
            on_event,
            Threads(files, workers, helpers, settings.workers >= _MANY_CORES, PrioritySemaphore(layers)),
            store,
            ImageCache(ImageStore(store.files), files, on_event),
            budget,
            resources,
            policy,
            registries,
            source_factory,
            cluster,
        )


def _registry_source(registries: RegistryPool, context: SourceContext, cluster: Cluster | None, text: str) -> Source:
    reference = registries.qualified(text)
    source = RegistrySource(registries.endpoints(reference), reference, context)
    return source if cluster is None else cluster.source(source, reference, context)
