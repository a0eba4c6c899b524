"""The client: what programs and the command line use."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from fastpull.cache.lockscope import local_lock_option
from fastpull.cache.store import Store
from fastpull.config import Settings
from fastpull.engine import Pull, PullReport, Workshop, warm_image
from fastpull.errors import FastpullError, OutputError
from fastpull.layers.windows import Windows
from fastpull.meter import Meter
from fastpull.oci.platform import Platform
from fastpull.oci.reference import is_loopback
from fastpull.policy import load_policy
from fastpull.progress import OnEvent, Resolved, Retrying, Warned, ignore
from fastpull.registry.client import RegistryClient
from fastpull.registry.credentials import find_credentials
from fastpull.registry.endpoints import Endpoint, Endpoints
from fastpull.registry.registries_conf import load_registries_conf
from fastpull.registry.transport import Transport
from fastpull.runtimes.choose import dialects_for
from fastpull.sinks.base import Resources
from fastpull.sinks.choose import sink_for
from fastpull.sinks.framed import framed
from fastpull.sources.open import open_source
from fastpull.sources.registry import Means, RegistrySource
from fastpull.tasks import Budget, Turns, in_thread, task_group
from fastpull.trace import Stage
from fastpull.unpack import LAYER_COST

if TYPE_CHECKING:
    from fastpull.oci.image import Image
    from fastpull.oci.reference import Reference
    from fastpull.registry.mirrors import PullSource
    from fastpull.runtimes.base import Dialect
    from fastpull.sinks.base import Sink
    from fastpull.sources.base import Source
    from fastpull.trace import Trace

_MANY_CORES = 4  # with two, hashing on a thread of its own made pulls into a directory 6 % slower, and no other faster
_DOWNLOADS_KEEP = 16 << 20  # of the budget, however large the windows of inflaters: four connections
_FILE_THREADS = 8  # more than the writes that a disk takes at a time


@dataclass(frozen=True, slots=True)
class WarmReport:
    """What warming the cache with one reference did.

    Attributes:
        source: as it was given.
        image: what it is; None if that failed.
        error: why it failed; None if it did not.
    """

    source: str
    image: Image | None
    error: FastpullError | None


class Client:
    """Pulls images through one cache. Use it as an async context manager, for as many images as you like.

    It installs no event loop policy, no signal handler and no logger. Cancelling a call ends its work within moments;
    the destination is as it was (or complete, if it was just being published), and what was downloaded stays in the
    cache.

    Args:
        settings: by default those of the environment.
        cache: directory of the cache, in place of the settings' own.
        on_event: told what happens, on the event loop's thread.

    Raises:
        InvalidSetting: from the constructor.
        CacheError: from ``async with``, if the cache cannot be made.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        cache: str | os.PathLike[str] | None = None,
        on_event: OnEvent = ignore,
    ) -> None:
        self.settings = settings or Settings.load(cache=None if cache is None else os.fspath(cache))
        self._on_event = on_event
        self._registries: dict[tuple[str, bool, bool], RegistryClient] = {}
        self._endpoints: dict[tuple[str, bool, bool], Endpoint] = {}
        self._exit = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        settings = self.settings
        async with contextlib.AsyncExitStack() as stack:
            files = stack.enter_context(ThreadPoolExecutor(_FILE_THREADS, "fastpull-files"))
            # layers wait for downloads, so what they hold must never be what a download waits for: each has its part
            layers = max(1, min(settings.workers, settings.memory // 4 // LAYER_COST))
            self._resources = Resources(settings.workers, layers, settings.memory // 4, settings.sync)
            budget = Budget(settings.memory - self._resources.memory - layers * LAYER_COST)
            windows = _windows_beside(budget)
            workers = stack.enter_context(ThreadPoolExecutor(layers, "fastpull-layer"))
            helpers = None
            if settings.workers >= _MANY_CORES:
                helpers = stack.enter_context(ThreadPoolExecutor(layers, "fastpull-hash"))
            store = await in_thread(files, Store, settings.cache)
            local_locks = await in_thread(files, local_lock_option, store.root)
            if local_locks:
                message = f"locks of this filesystem ({local_locks}) hold on this node only: fill it from one node"
                self._on_event(Warned(settings.cache, message))
            self._registries_conf = await in_thread(files, load_registries_conf, settings.registries_conf)
            self._policy = await in_thread(files, load_policy, settings.policy)
            self._transport = await stack.enter_async_context(Transport(insecure=settings.insecure))
            self._means = Means(store, files, budget, settings.sync, self._on_event)
            self._workshop = Workshop(
                store, files, workers, helpers, Turns(layers), windows, self._on_event, settings.limits
            )
            self._exit = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exit.aclose()

    async def resolve(self, source: str, platform: str | Platform | None = None) -> Image:
        """Finds out what a source is now.

        Args:
            source: ``REF``, ``docker://REF`` or ``oci:DIR[:TAG|@DIGEST]``.
            platform: ``os/architecture[/variant]``, by default this machine's.

        Raises:
            InvalidReference, InvalidPlatform: they cannot be read.
            TransportError, RegistryError, AccessDenied: the source does not tell.
            UnsupportedMediaType: it is no image.
        """
        if platform is None:
            platform = Platform.of_host()
        elif isinstance(platform, str):
            platform = Platform.parse(platform)
        image = await self._source(source).resolve(platform)
        self._on_event(Resolved(image))
        return image

    async def pull(
        self,
        image: str | Image,
        output: str | os.PathLike[str] | Sink,
        platform: str | Platform | None = None,
        *,
        runtimes: Iterable[str | Dialect] = (),
        trace: Trace | None = None,
    ) -> PullReport:
        """Makes an image's root filesystem.

        Args:
            image: what `resolve` returned, or what it takes.
            output: a sink, or a path as for `sink_for`.
            platform: as for `resolve`.
            runtimes: that the output is for, by the names of `RUNTIMES`: what they want to find is put into it, or
                beside it. Several are possible where their wishes do not collide.
            trace: gets a timeline of the work, also when it fails.

        Raises:
            Forbidden: the policy does not let the image in; nothing was asked for.
            FastpullError: whatever went wrong; nothing was published, and the destination is as it was.
        """
        dialects = dialects_for(runtimes)
        sink = framed(sink_for(output) if isinstance(output, str | os.PathLike) else output, dialects)
        files, meter = self._workshop.files, Meter(trace)
        try:
            self._check_policy(image if isinstance(image, str) else image.source)
            await in_thread(files, sink.begin, replace(self._resources, meter=meter))
            if isinstance(image, str):
                with meter.image.at(Stage.RESOLVE):
                    image = await self.resolve(image, platform)
            return await Pull(image, self._source(image.source), sink, self._workshop, meter, dialects).run()
        except BaseException:
            with contextlib.suppress(OutputError):  # what went wrong first is what is to be told
                await in_thread(files, sink.abort)
            raise

    async def warm(
        self, sources: Iterable[str], *, jobs: int = 4, platform: str | Platform | None = None
    ) -> list[WarmReport]:
        """Brings images into the cache; a failure of one does not stop the others.

        Args:
            sources: as for `resolve`. A layout is verified where it is.
            jobs: images that are fetched side by side.
            platform: as for `resolve`.

        Returns:
            A report for each source, in their order.
        """
        turns = Turns(jobs)

        async def warm_one(rank: int, source: str) -> WarmReport:
            with await turns.acquire(rank):
                try:
                    self._check_policy(source)
                    image = await self.resolve(source, platform)
                    await warm_image(image, self._source(image.source), self._workshop, rank)
                except FastpullError as error:
                    return WarmReport(source, None, error)
                return WarmReport(source, image, None)

        async with task_group() as group:
            tasks = [group.create_task(warm_one(rank, source)) for rank, source in enumerate(sources)]
        return [task.result() for task in tasks]

    def _check_policy(self, source: str) -> None:
        self._policy.check(self._source(source).identity)

    def _source(self, text: str) -> Source:
        return open_source(text, self._registry_source)

    def _registry_source(self, text: str) -> Source:
        reference = self._registries_conf.qualified(text)
        endpoints = tuple(self._endpoint(place) for place in self._registries_conf.pull_sources(reference))
        name = str(reference)
        return RegistrySource(
            Endpoints(endpoints, lambda message: self._on_event(Warned(name, message))), reference, self._means
        )

    def _endpoint(self, place: PullSource) -> Endpoint:
        reference = place.reference
        key = (reference.name, place.is_mirror, place.is_insecure)
        known = self._endpoints.get(key)
        if known is None:
            client = self._registry(reference, is_mirror=place.is_mirror, is_insecure=place.is_insecure)
            known = self._endpoints[key] = Endpoint(client, reference.repository, place.is_mirror)
        return known

    def _registry(self, reference: Reference, *, is_mirror: bool = False, is_insecure: bool = False) -> RegistryClient:
        key = (reference.registry, is_mirror, is_insecure)
        known = self._registries.get(key)
        if known is None:
            may_be_plain = self.settings.insecure or is_insecure or is_loopback(reference.host)
            if is_insecure:
                self._transport.allow_insecure(reference.host)
            known = self._registries[key] = RegistryClient(
                self._transport,
                reference.registry,
                reference.host,
                schemes=("https", "http") if may_be_plain else ("https",),
                credentials=find_credentials(reference.registry),
                max_connections=self.settings.connections,
                on_retry=lambda host, error, pause: self._on_event(Retrying(host, str(error), pause)),
            )
            if is_mirror:
                known.backoff = replace(known.backoff, attempts=1)  # there are others to ask
        return known


def _windows_beside(budget: Budget) -> Windows:
    """Memory for windows, taken from the downloads' budget: never what the download of a layer needs to go on."""
    loop, total = asyncio.get_running_loop(), budget.total

    def on_change(taken: int) -> None:
        loop.call_soon_threadsafe(budget.resize, max(keep, total - taken))

    keep = min(_DOWNLOADS_KEEP, total // 2)
    return Windows(total - keep, on_change)


def pull(
    source: str,
    output: str | os.PathLike[str] | Sink,
    *,
    platform: str | None = None,
    runtimes: Iterable[str | Dialect] = (),
    settings: Settings | None = None,
    on_event: OnEvent = ignore,
) -> PullReport:
    """Makes an image's root filesystem, for scripts: `Client.pull` without an event loop of your own."""

    async def run() -> PullReport:
        async with Client(settings, on_event=on_event) as client:
            return await client.pull(source, output, platform, runtimes=runtimes)

    return asyncio.run(run())
