"""Outputs: the ways from an image to an output, from the cheapest to the most expensive.

::

    the output exists unchanged      ──> nothing to do
    the cache has a finished image   ──> copy it
    neither                          ──> pull the layers through the sink: `fastpull.pipeline.pull`
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fastpull.cache.images.pins import Pins
from fastpull.cache.maintenance.stagings import StagingRecords
from fastpull.concurrency.threads import in_thread, repeating
from fastpull.errors import InvalidSetting, OutputError
from fastpull.pipeline.blobs import TICK_SECONDS, warm_image
from fastpull.pipeline.pull import Pull
from fastpull.pipeline.report import PullReport
from fastpull.pipeline.unchanged import find_unchanged, set_identity
from fastpull.runtimes.choose import profiles_for
from fastpull.sinks.bundle import shaped
from fastpull.sinks.capabilities import FinishedImageSink, NamedSink
from fastpull.sinks.choose import sink_for
from fastpull.sinks.output.destination import record_staging
from fastpull.sinks.output.digest_file import prepared_digest_file
from fastpull.sinks.squashfs.image.image_writer import SquashfsReport
from fastpull.sinks.squashfs.recipe import Recipe
from fastpull.sinks.squashfs.sink import Squashfs
from fastpull.telemetry.events import Copying
from fastpull.telemetry.timing import PullTimer
from fastpull.telemetry.trace import Stage

if TYPE_CHECKING:
    from fastpull.cache.images.pins import Holder
    from fastpull.cache.images.store import FinishedImage
    from fastpull.oci.image import Image
    from fastpull.oci.platform import Platform
    from fastpull.pipeline.session import Session
    from fastpull.runtimes.base import RuntimeProfile
    from fastpull.sinks.base import Sink
    from fastpull.telemetry.trace import Trace

_TRIES = 2  # attempts to copy a finished image; another process may be emptying the cache


class OutputTask:
    """One call of `fastpull.Client.pull` or `fastpull.Client.ensure_squashfs`.

    Args:
        session: the session of the client.
        trace: receives a timeline of the work.
    """

    def __init__(self, session: Session, trace: Trace | None = None) -> None:
        self._session = session
        self._timer = PullTimer(trace)
        self._files = session.threads.files

    async def pull(
        self,
        image: str | Image,
        output: str | os.PathLike[str] | Sink,
        platform: str | Platform | None,
        runtimes: Iterable[str | RuntimeProfile],
        digest_file: str | os.PathLike[str] | None,
    ) -> PullReport:
        """Make the output; see `fastpull.Client.pull`."""
        session = self._session
        if isinstance(output, str | os.PathLike):
            output = sink_for(output, settings=session.settings)
        asked = (*(output.recipe.runtimes if isinstance(output, FinishedImageSink) else ()), *runtimes)
        profiles = profiles_for(asked)
        sink = shaped(output, profiles)
        # what a caller's own profile adds is unknown, so that its output cannot be recognised later
        is_known = all(isinstance(runtime, str) for runtime in asked)
        image = await session.with_scheme(image)
        session.check_policy(image)
        keep_out, sync = (session.settings.cache,), session.settings.sync
        async with prepared_digest_file(digest_file, self._files, keep_out, sync=sync) as write_digest:
            report: PullReport | None = None
            if is_known and session.cluster is None:  # nodes that make an output together need every node
                resolve = partial(self._resolve, image, platform)
                report = await find_unchanged(sink, profiles, resolve, self._files, session.on_event)
            if report is None:
                async with self._recorded(sink), self._begun(sink, keep_out):
                    image = await self._resolve(image, platform)
                    set_identity(sink, image, profiles if is_known else None)
                    if isinstance(sink, FinishedImageSink) and is_known:
                        recipe = replace(sink.recipe, runtimes=tuple(sorted(profile.name for profile in profiles)))
                        report = await self._pull_finished(image, sink, recipe)
                    if report is None:
                        report = await self._pull_layers(image, sink, profiles)
            await write_digest(report.image.digest)
            return report

    async def ensure_squashfs(
        self,
        image: str | Image,
        recipe: Recipe | None,
        platform: str | Platform | None,
        holder: Holder | None,
        sync: bool | None,
    ) -> FinishedImage:
        """Make the finished image if the cache lacks it; see `fastpull.Client.ensure_squashfs`."""
        session = self._session
        image = await session.with_scheme(image)
        session.check_policy(image)
        if isinstance(image, str):
            image = await session.resolve(image, platform)
        if recipe is None:
            recipe = Recipe.of(session.settings.compression, session.settings.block_size)
        if holder is None:
            finished, _ = await self._finished(image, recipe, sync)
            return finished
        # pin first: an image that exists after that cannot be removed
        pins, name = Pins(session.store.files), session.image_key(image, recipe).name
        is_new = await in_thread(self._files, pins.add, holder, name)
        try:
            finished, _ = await self._finished(image, recipe, sync)
        except BaseException:
            if is_new:
                await in_thread(self._files, pins.release, holder, name)
            raise
        return finished

    async def _resolve(self, image: str | Image, platform: str | Platform | None) -> Image:
        if not isinstance(image, str):
            return image
        with self._timer.image.timed(Stage.RESOLVE):
            return await self._session.resolve(image, platform)

    # --- finished images

    async def _finished(
        self, image: Image, recipe: Recipe, sync: bool | None = None
    ) -> tuple[FinishedImage, PullReport | None]:
        """Return the finished image, and the report if it was made now."""
        session, report = self._session, None

        async def build(path: str) -> dict[str, Any]:
            nonlocal report
            sink, profiles = Squashfs(path, force=True, recipe=recipe), profiles_for(recipe.runtimes)
            if shaped(sink, profiles) is not sink:
                raise InvalidSetting(", ".join(recipe.runtimes), "this is more than one file, pull it")
            async with self._begun(sink):
                set_identity(sink, image, profiles)
                report = await self._pull_layers(image, sink, profiles)
            assert isinstance(report.output, SquashfsReport)
            return {
                **report.output.facts(),
                "entries": report.entries,
                "unpacked": report.unpacked,
                "warnings": list(report.warnings),
            }

        sync = session.settings.sync if sync is None else sync
        finished = await session.images.get(session.image_key(image, recipe), image.source, build, sync=sync)
        if report is None:
            self._repeat_warnings(finished, image.source)
        return finished, report

    async def _pull_finished(self, image: Image, sink: FinishedImageSink, recipe: Recipe) -> PullReport | None:
        """Publish a finished image of the cache; None if there is none and the settings keep none."""
        session = self._session
        for _ in range(_TRIES):
            built: PullReport | None = None
            if session.settings.keep_images:
                finished, built = await self._finished(image, recipe)
            else:
                found = await session.images.find(session.image_key(image, recipe), image.source)
                if found is None:
                    return None
                finished = found
                self._repeat_warnings(finished, image.source)
            started = time.monotonic()
            output = await self._copy(image.source, finished, sink)
            seconds = time.monotonic() - started
            if output is None:
                await session.images.drop(finished)
                session.warn(image.source, "a finished image of the cache is damaged or gone, and not used")
            elif built is not None:
                return replace(built, output=output, commit_seconds=built.commit_seconds + seconds)
            else:
                return PullReport.of_finished(image, output, seconds, finished.facts)
        return None

    async def _copy(self, source: str, finished: FinishedImage, sink: FinishedImageSink) -> SquashfsReport | None:
        def tell() -> None:
            self._session.on_event(Copying(source, finished.size, sink.copied))

        async with repeating(TICK_SECONDS, tell):
            return await in_thread(self._files, sink.take_finished, finished, abort=sink.cancel)

    def _repeat_warnings(self, finished: FinishedImage, source: str) -> None:
        for warning in finished.facts.get("warnings", ()):
            self._session.warn(source, warning)

    # --- layers

    async def _pull_layers(self, image: Image, sink: Sink, profiles: Sequence[RuntimeProfile]) -> PullReport:
        session = self._session
        source, context = session.source(image.source), session.context
        if session.cluster is None:
            return await Pull(image, source, sink, context, self._timer, profiles).run()
        from fastpull.pipeline.distributed import DistributedBuilder  # noqa: PLC0415  # loads MPI, for clusters only

        distribute = partial(DistributedBuilder.begin, image, source, sink, context.files)
        return await Pull(image, source, sink, context, self._timer, profiles, distribute).run()

    @contextlib.asynccontextmanager
    async def _recorded(self, sink: Sink) -> AsyncIterator[None]:
        """Record the staging of a sink in the cache, so that ``cache gc`` removes it if this process is killed."""
        records, record = StagingRecords(self._session.store.files), None
        if isinstance(sink, NamedSink):
            record = await in_thread(self._files, record_staging, records, sink.path)
        try:
            yield
        finally:
            if record is not None:
                await in_thread(self._files, records.remove, record)

    @contextlib.asynccontextmanager
    async def _begun(self, sink: Sink, keep_out: tuple[str, ...] = ()) -> AsyncIterator[None]:
        """Begin a sink; abort it if the body fails."""
        resources = replace(self._session.resources, meter=self._timer, keep_out=keep_out)
        try:
            await in_thread(self._files, sink.begin, resources)
            yield
        except BaseException:
            with contextlib.suppress(OutputError):  # the first error is the one to report
                await in_thread(self._files, sink.abort)
            raise


async def warm_source(session: Session, source: str, platform: str | Platform | None, rank: int) -> Image:
    """Download the layers of a source into the cache; return its image.

    Args:
        session: the session of the client.
        source: the source as the user gave it.
        platform: the platform; None for the one of this machine.
        rank: rank among concurrent images; the lowest gets its connections first.

    Raises:
        Forbidden: the policy does not admit the source; nothing was requested.
        FastpullError: the image cannot be resolved or fetched.
    """
    named = await session.source_factory.with_scheme(source)
    session.check_policy(named)
    image = await session.resolve(named, platform)
    await warm_image(image, session.source(image.source), session.context, rank)
    return image
