"""The client: what programs and the command line use."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

from fastpull.cache.images.pins import Pins
from fastpull.cache.images.store import ImageKey, ImageStore
from fastpull.cache.locking.mounts import local_lock_option
from fastpull.cache.locking.shared_semaphore import SharedSemaphore
from fastpull.cache.maintenance.stagings import StagingRecords
from fastpull.cache.store import Store
from fastpull.concurrency.budget import ByteBudget
from fastpull.concurrency.memory import LAYER_COST
from fastpull.concurrency.semaphores import PrioritySemaphore
from fastpull.concurrency.threads import in_thread, repeating, task_group
from fastpull.config.policy import load_policy
from fastpull.config.settings import Settings
from fastpull.errors import AccessDenied, FastpullError, InvalidSetting, NotFound, OutputError
from fastpull.oci.platform import Platform
from fastpull.pipeline.image_cache import ImageCache
from fastpull.registry.auth.keyring import Keyring
from fastpull.registry.conf.load import load_registries_conf
from fastpull.registry.http.transport import Transport
from fastpull.registry.pool import RegistryPool
from fastpull.sinks.base import Resources
from fastpull.sinks.capabilities import FinishedImageSink, NamedSink
from fastpull.sinks.squashfs.recipe import Recipe
from fastpull.sources.archive_opener import ArchiveOpener
from fastpull.sources.blobs import SourceContext
from fastpull.sources.local import is_path, local_advice, path_of
from fastpull.sources.open import SourceFactory
from fastpull.sources.registry import RegistrySource
from fastpull.telemetry.events import Copying, OnEvent, Resolved, Warned, ignore
from fastpull.telemetry.timing import PullTimer
from fastpull.telemetry.trace import Stage

if TYPE_CHECKING:
    from fastpull.cache.images.pins import Holder
    from fastpull.cache.images.store import FinishedImage
    from fastpull.cluster.root.cluster import Cluster
    from fastpull.layers.windows import WindowMemory
    from fastpull.oci.image import Image
    from fastpull.pipeline.context import PullContext
    from fastpull.pipeline.report import PullReport
    from fastpull.runtimes.base import RuntimeProfile
    from fastpull.sinks.base import Sink
    from fastpull.sinks.squashfs.image.image_writer import SquashfsReport
    from fastpull.sources.base import Source
    from fastpull.telemetry.trace import Trace

_MANY_CORES = 4  # with two, hashing on a thread of its own made pulls into a directory 6 % slower, and no other faster
_DOWNLOADS_KEEP = 16 << 20  # of the budget, however large the windows of inflaters: four connections
_TRIES = 2  # of taking a finished image before it is made without the cache, which somebody may be emptying
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
        cluster: of which this client is one node: what it `fastpull.Cluster.run`s comes from the registry once for all.

    Raises:
        InvalidSetting: from the constructor.
        CacheError: from ``async with``, if the cache cannot be made.
        RuntimeError: from every method, outside of ``async with``.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        cache: str | os.PathLike[str] | None = None,
        on_event: OnEvent = ignore,
        cluster: Cluster | None = None,
    ) -> None:
        self._cluster = cluster
        self.settings = settings or Settings.load(cache=None if cache is None else os.fspath(cache))
        self._on_event = on_event
        self._keyring = Keyring(self.settings.access, on_warning=self._warn)
        self._exit: contextlib.AsyncExitStack | None = None

    async def __aenter__(self) -> Self:
        settings = self.settings
        async with contextlib.AsyncExitStack() as stack:
            files = stack.enter_context(ThreadPoolExecutor(_FILE_THREADS, "fastpull-files"))
            # layers wait for downloads, so what they hold must never be what a download waits for: each has its part
            layers = max(1, min(settings.workers, settings.memory // 4 // LAYER_COST))
            self._resources = Resources(settings.workers, layers, settings.memory // 4, settings.sync)
            budget = ByteBudget(settings.memory - self._resources.memory - layers * LAYER_COST)
            workers = stack.enter_context(ThreadPoolExecutor(layers, "fastpull-layer"))
            helpers = None
            if settings.workers >= _MANY_CORES:
                helpers = stack.enter_context(ThreadPoolExecutor(layers, "fastpull-hash"))
            store = self._store = await in_thread(files, Store, settings.cache, settings.locks)
            if settings.locks == "flock" and (option := await in_thread(files, local_lock_option, store.root)):
                message = f"locks of this filesystem ({option}) hold on this node only: use --locks auto or lease"
                self._warn(settings.cache, message)
            conf = await in_thread(files, load_registries_conf, settings.registries_conf)
            self._policy = await in_thread(files, load_policy, settings.policy)
            transport = await stack.enter_async_context(Transport(settings.access))
            site = settings.site_connections
            slots = None if site is None else SharedSemaphore(store.connection_permit, site, files)
            if slots is not None:
                stack.push_async_callback(slots.close)
            permit = contextlib.nullcontext if slots is None else slots.hold
            self._registries = RegistryPool(settings, transport, self._keyring, conf, permit, self._on_event)
            self._opener = SourceFactory(self._registry_source, ArchiveOpener(store, files, settings.limits))
            stack.callback(self._opener.archives.close)
            self._means = SourceContext(store, files, budget, settings, self._on_event)
            self._finisher = ImageCache(ImageStore(store.files), files, self._on_event)
            self._files, self._crew = files, (workers, helpers, PrioritySemaphore(layers), budget)
            self._exit = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        stack, self._exit = self._exit, None
        if stack is not None:
            await stack.aclose()

    async def resolve(self, source: str, platform: str | Platform | None = None) -> Image:
        """Finds out what a source is now.

        Args:
            source: ``REF``, ``docker://REF``, ``oci:DIR[:TAG|@DIGEST]``, ``oci-archive:FILE[:TAG|@DIGEST]``,
                ``docker-archive:FILE[:REF|:@NUMBER]``, ``docker-daemon:REF`` or ``containers-storage:REF``; or a path
                as in `fastpull.sources.local.is_path`, of a layout or an archive.
            platform: ``os/architecture[/variant]``, by default this machine's.

        Raises:
            InvalidReference, InvalidPlatform: they cannot be read.
            TransportError, RegistryError, AccessDenied: the source does not tell.
            UnsupportedMediaType: it is no image.
        """
        self._check_entered()
        if platform is None:
            platform = Platform.of_host()
        elif isinstance(platform, str):
            platform = Platform.parse(platform)
        source = await self._opener.with_scheme(source)
        try:
            image = await self._source(source).resolve(platform)
        except (NotFound, AccessDenied) as error:
            error.advice = ". ".join(filter(None, (error.advice, await in_thread(self._files, local_advice, source))))
            raise
        for warning in image.warnings:
            self._warn(source, warning)
        self._on_event(Resolved(image))
        return image

    async def pull(
        self,
        image: str | Image,
        output: str | os.PathLike[str] | Sink,
        platform: str | Platform | None = None,
        *,
        runtimes: Iterable[str | RuntimeProfile] = (),
        trace: Trace | None = None,
        digest_file: str | os.PathLike[str] | None = None,
    ) -> PullReport:
        """Makes an image's root filesystem.

        Where the output is there already, made of the same image in the same way and unchanged as far as that can be
        known, nothing is done, unless it is to be replaced.

        Args:
            image: what `resolve` returned, or what it takes.
            output: a sink, or a path as for `sink_for`.
            platform: as for `resolve`.
            runtimes: that the output is for, by the names of `RUNTIMES`: what they want to find is put into it, or
                beside it. Several are possible where their wishes do not collide.
            trace: gets a timeline of the work, also when it fails.
            digest_file: path of a file that gets the digest of the manifest when the output is complete; a regular file
                there is replaced.

        Raises:
            Forbidden: the policy does not let the image in; nothing was asked for.
            FastpullError: whatever went wrong; nothing was published, and the destination is as it was.
        """
        self._check_entered()
        from fastpull.pipeline.unchanged import find_unchanged, set_identity  # noqa: PLC0415
        from fastpull.runtimes.choose import profiles_for  # noqa: PLC0415  # see `_workshop`
        from fastpull.sinks.bundle import shaped  # noqa: PLC0415
        from fastpull.sinks.choose import sink_for  # noqa: PLC0415
        from fastpull.sinks.output.digest_file import prepared_digest_file  # noqa: PLC0415

        if isinstance(output, str | os.PathLike):
            output = sink_for(output, settings=self.settings)
        asked = (*(output.recipe.runtimes if isinstance(output, FinishedImageSink) else ()), *runtimes)
        profiles = profiles_for(asked)
        sink, meter = shaped(output, profiles), PullTimer(trace)
        # of profiles that are the caller's own nobody knows what they add, so that nothing can be kept of them
        is_known = all(isinstance(runtime, str) for runtime in asked)
        image = await self._opener.with_scheme(image) if isinstance(image, str) else image
        self._check_policy(image if isinstance(image, str) else image.source)
        keep_out, sync = (self.settings.cache,), self.settings.sync
        async with prepared_digest_file(digest_file, self._files, keep_out, sync=sync) as write_digest:
            report: PullReport | None = None
            if is_known and self._cluster is None:  # nodes that make an output together need each of them
                resolve = partial(self._resolved, image, platform, meter)
                report = await find_unchanged(sink, profiles, resolve, self._files, self._on_event)
            if report is None:
                async with self._recorded(sink), self._begun(sink, meter, keep_out):
                    image = await self._resolved(image, platform, meter)
                    set_identity(sink, image, profiles if is_known else None)
                    if isinstance(sink, FinishedImageSink) and is_known:
                        recipe = replace(sink.recipe, runtimes=tuple(sorted(profile.name for profile in profiles)))
                        report = await self._take(image, sink, recipe, meter)
                    if report is None:
                        report = await self._run(image, sink, meter, profiles)
            await write_digest(report.image.digest)
            return report

    async def _resolved(self, image: str | Image, platform: str | Platform | None, meter: PullTimer) -> Image:
        if not isinstance(image, str):
            return image
        with meter.image.at(Stage.RESOLVE):
            return await self.resolve(image, platform)

    async def finish(
        self,
        image: str | Image,
        recipe: Recipe | None = None,
        platform: str | Platform | None = None,
        *,
        holder: Holder | None = None,
        sync: bool | None = None,
    ) -> FinishedImage:
        """Makes sure that the cache has a finished squashfs file of an image, and says where it is.

        Of all tasks, processes and nodes that want it, one makes it. The file is read-only and nobody's but the
        cache's: it may be mounted or read where it is.

        Args:
            image: what `resolve` returned, or what it takes.
            recipe: how the file is made, and for which runtimes; by default as the settings say, and for none.
            platform: as for `resolve`.
            holder: who uses the file from now on; the cache keeps it until they release it.
            sync: have it on its disk before it appears; by default as the settings say.

        Raises:
            Forbidden: the policy does not let the image in; nothing was asked for.
            FastpullError: whatever went wrong; nothing was published, and nothing is held that was not before.
        """
        self._check_entered()
        meter = PullTimer()
        image = await self._opener.with_scheme(image) if isinstance(image, str) else image
        self._check_policy(image if isinstance(image, str) else image.source)
        if isinstance(image, str):
            image = await self.resolve(image, platform)
        if recipe is None:
            recipe = Recipe.of(self.settings.compression, self.settings.block_size)
        if holder is None:
            finished, _ = await self._finish(image, recipe, meter, sync)
            return finished
        # the pin comes first: what is there after that stays
        pins, name = Pins(self._store.files), self._key(image, recipe).name
        is_new = await in_thread(self._files, pins.add, holder, name)
        try:
            finished, _ = await self._finish(image, recipe, meter, sync)
        except BaseException:
            if is_new:
                await in_thread(self._files, pins.release, holder, name)
            raise
        return finished

    async def _finish(
        self, image: Image, recipe: Recipe, meter: PullTimer, sync: bool | None = None
    ) -> tuple[FinishedImage, PullReport | None]:
        """A finished image, and the report of its making if it was made now."""
        report: PullReport | None = None

        async def build(path: str) -> dict[str, Any]:
            nonlocal report
            from fastpull.pipeline.unchanged import set_identity  # noqa: PLC0415
            from fastpull.runtimes.choose import profiles_for  # noqa: PLC0415  # see `_workshop`
            from fastpull.sinks.bundle import shaped  # noqa: PLC0415
            from fastpull.sinks.squashfs.image.image_writer import SquashfsReport  # noqa: PLC0415
            from fastpull.sinks.squashfs.sink import Squashfs  # noqa: PLC0415

            sink, profiles = Squashfs(path, force=True, recipe=recipe), profiles_for(recipe.runtimes)
            if shaped(sink, profiles) is not sink:
                raise InvalidSetting(", ".join(recipe.runtimes), "this is more than one file, pull it")
            async with self._begun(sink, meter):
                set_identity(sink, image, profiles)
                report = await self._run(image, sink, meter, profiles)
            assert isinstance(report.output, SquashfsReport)
            return {
                **report.output.facts(),
                "entries": report.entries,
                "unpacked": report.unpacked,
                "warnings": list(report.warnings),
            }

        sync = self.settings.sync if sync is None else sync
        finished = await self._finisher.get(self._key(image, recipe), image.source, build, sync=sync)
        if report is None:
            self._warn_again(finished, image.source)
        return finished, report

    def _warn_again(self, finished: FinishedImage, source: str) -> None:
        for warning in finished.facts.get("warnings", ()):
            self._warn(source, warning)

    async def _take(self, image: Image, sink: FinishedImageSink, recipe: Recipe, meter: PullTimer) -> PullReport | None:
        """Pulls out of the cache's finished images; None where that is neither possible nor wanted."""
        from fastpull.pipeline.report import PullReport  # noqa: PLC0415  # see `_workshop`

        for _ in range(_TRIES):
            built: PullReport | None = None
            if self.settings.keep_images:
                finished, built = await self._finish(image, recipe, meter)
            else:
                found = await self._finisher.find(self._key(image, recipe), image.source)
                if found is None:
                    return None
                finished = found
                self._warn_again(finished, image.source)
            started = time.monotonic()
            output = await self._copy(image.source, finished, sink)
            seconds = time.monotonic() - started
            if output is None:
                await self._finisher.drop(finished)
                self._on_event(Warned(image.source, "a finished image of the cache is damaged or gone, and not used"))
            elif built is not None:
                return replace(built, output=output, commit_seconds=built.commit_seconds + seconds)
            else:
                return PullReport.of_finished(image, output, seconds, finished.facts)
        return None

    async def _copy(self, source: str, finished: FinishedImage, sink: FinishedImageSink) -> SquashfsReport | None:
        from fastpull.pipeline.blobs import TICK_SECONDS  # noqa: PLC0415  # see `_workshop`

        def tell() -> None:
            self._on_event(Copying(source, finished.size, sink.copied))

        async with repeating(TICK_SECONDS, tell):
            return await in_thread(self._files, sink.take_finished, finished, abort=sink.cancel)

    def _key(self, image: Image, recipe: Recipe) -> ImageKey:
        is_trusted = self.settings.share_images or not self._store.files.is_shared
        maker = None if is_trusted else os.geteuid()
        return ImageKey(image.digest, str(image.platform), recipe.facts(image.source), maker)

    async def _run(self, image: Image, sink: Sink, meter: PullTimer, profiles: Sequence[RuntimeProfile]) -> PullReport:
        from fastpull.pipeline.pull import Pull  # noqa: PLC0415  # see `_workshop`

        source, workshop = self._source(image.source), self._workshop
        if self._cluster is None:
            return await Pull(image, source, sink, workshop, meter, profiles).run()
        from fastpull.pipeline.distributed import DistributedBuilder  # noqa: PLC0415  # few need it

        share = partial(DistributedBuilder.begin, image, source, sink, workshop.files)
        return await Pull(image, source, sink, workshop, meter, profiles, share).run()

    @contextlib.asynccontextmanager
    async def _recorded(self, sink: Sink) -> AsyncIterator[None]:
        """Has a sink's staging recorded in the cache, so that ``cache gc`` can remove it if this process is killed."""
        from fastpull.sinks.output.destination import record_staging  # noqa: PLC0415  # see `_workshop`

        records, record = StagingRecords(self._store.files), None
        if isinstance(sink, NamedSink):
            record = await in_thread(self._files, record_staging, records, sink.path)
        try:
            yield
        finally:
            if record is not None:
                await in_thread(self._files, records.remove, record)

    @contextlib.asynccontextmanager
    async def _begun(self, sink: Sink, meter: PullTimer, keep_out: tuple[str, ...] = ()) -> AsyncIterator[None]:
        """Begins a sink, and aborts it if what is done with it fails."""
        try:
            await in_thread(self._files, sink.begin, replace(self._resources, meter=meter, keep_out=keep_out))
            yield
        except BaseException:
            with contextlib.suppress(OutputError):  # what went wrong first is what is to be told
                await in_thread(self._files, sink.abort)
            raise

    async def warm(
        self, sources: str | Iterable[str], *, jobs: int = 4, platform: str | Platform | None = None
    ) -> list[WarmReport]:
        """Brings images into the cache; a failure of one does not stop the others.

        Args:
            sources: as for `resolve`, one or several. A layout is verified where it is.
            jobs: images that are fetched side by side.
            platform: as for `resolve`.

        Returns:
            A report for each source, in their order.
        """
        self._check_entered()
        from fastpull.pipeline.blobs import warm_image  # noqa: PLC0415  # see `_workshop`

        sources = [sources] if isinstance(sources, str) else sources
        turns = PrioritySemaphore(jobs)

        async def warm_one(rank: int, source: str) -> WarmReport:
            with await turns.acquire(rank):
                try:
                    named = await self._opener.with_scheme(source)
                    self._check_policy(named)
                    image = await self.resolve(named, platform)
                    await warm_image(image, self._source(image.source), self._workshop, rank)
                except FastpullError as error:
                    return WarmReport(source, None, error)
                return WarmReport(source, image, None)

        async with task_group() as group:
            tasks = [group.create_task(warm_one(rank, source)) for rank, source in enumerate(sources)]
        return [task.result() for task in tasks]

    @cached_property
    def _workshop(self) -> PullContext:
        # loaded with all that it needs when it is needed: who only asks for a finished image waits for nothing else
        from fastpull.pipeline.context import PullContext  # noqa: PLC0415

        workers, helpers, turns, budget = self._crew
        windows = _windows_beside(budget)
        return PullContext(
            self._store, self._files, workers, helpers, turns, windows, self._on_event, self.settings.limits
        )

    @staticmethod
    def local_path(source: str) -> str | None:
        """The path of a source that means a file or directory of this machine by its form; None for any other.

        Raises:
            InvalidSource, InvalidDigest: a part of it is empty, or no digest.
        """
        return path_of(source) if is_path(source) else None

    def _check_entered(self) -> None:
        if self._exit is None:
            raise RuntimeError("the client is not open, use it in: async with fastpull.Client() as client")

    def _check_policy(self, source: str) -> None:
        self._policy.check(self._source(source).identity)

    def _source(self, text: str) -> Source:
        return self._opener.open(text)

    def _registry_source(self, text: str) -> Source:
        reference = self._registries.qualified(text)
        source = RegistrySource(self._registries.endpoints(reference), reference, self._means)
        return source if self._cluster is None else self._cluster.source(source, reference, self._means)

    def _warn(self, subject: str, message: str) -> None:
        self._on_event(Warned(subject, message))


def _windows_beside(budget: ByteBudget) -> WindowMemory:
    """Memory for windows, taken from the downloads' budget: never what the download of a layer needs to go on."""
    from fastpull.layers.windows import WindowMemory  # noqa: PLC0415  # see `Client._workshop`

    loop, total = asyncio.get_running_loop(), budget.total

    def on_change(taken: int) -> None:
        loop.call_soon_threadsafe(budget.resize, max(keep, total - taken))

    keep = min(_DOWNLOADS_KEEP, total // 2)
    return WindowMemory(total - keep, on_change)


def pull(
    source: str,
    output: str | os.PathLike[str] | Sink,
    *,
    platform: str | None = None,
    runtimes: Iterable[str | RuntimeProfile] = (),
    settings: Settings | None = None,
    on_event: OnEvent = ignore,
) -> PullReport:
    """Makes an image's root filesystem, for scripts: `Client.pull` without an event loop of your own."""

    async def run() -> PullReport:
        async with Client(settings, on_event=on_event) as client:
            return await client.pull(source, output, platform, runtimes=runtimes)

    return asyncio.run(run())
