"""The client: the interface for programs and for the command line.

It is the composition root: entering it opens a `fastpull.pipeline.session.Session`, and every method hands that session
to the pipeline, whose modules are loaded on first use.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from fastpull import pipeline
from fastpull.concurrency.semaphores import PrioritySemaphore
from fastpull.concurrency.threads import task_group
from fastpull.config.settings import Settings
from fastpull.errors import FastpullError
from fastpull.pipeline.session import Session, open_session
from fastpull.registry.auth.keyring import Keyring
from fastpull.sources.local import is_path, path_of
from fastpull.telemetry.events import OnEvent, Warned, ignore

if TYPE_CHECKING:
    from fastpull.cache.images.pins import Holder
    from fastpull.cache.images.store import FinishedImage
    from fastpull.cluster.root.cluster import Cluster
    from fastpull.oci.image import Image
    from fastpull.oci.platform import Platform
    from fastpull.pipeline.report import PullReport
    from fastpull.runtimes.base import RuntimeProfile
    from fastpull.sinks.base import Sink
    from fastpull.sinks.squashfs.recipe import Recipe
    from fastpull.telemetry.trace import Trace


@dataclass(frozen=True, slots=True)
class WarmReport:
    """The result of warming the cache with one source.

    Attributes:
        source: the source as the caller gave it.
        image: the image; None if warming failed.
        error: the error; None if warming succeeded.
    """

    source: str
    image: Image | None
    error: FastpullError | None


class Client:
    """Pulls any number of images through one cache. Use it as an async context manager.

    It installs no event loop policy, no signal handler and no logger. A cancelled call ends within moments. The
    destination is then unchanged, or complete if it was just being published. Downloaded bytes stay in the cache.

    Args:
        settings: the settings; by default those of the environment.
        cache: the cache directory, in place of the settings' own.
        on_event: receives all events, on the thread of the event loop.
        cluster: the cluster of which this client is one node. The images of `fastpull.Cluster.run` are fetched from
            the registry once for all nodes.

    Raises:
        InvalidSetting: from the constructor.
        CacheError: from ``async with``, if the cache cannot be created.
        RuntimeError: from every method, outside ``async with``.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        cache: str | os.PathLike[str] | None = None,
        on_event: OnEvent = ignore,
        cluster: Cluster | None = None,
    ) -> None:
        self.settings = settings or Settings.load(cache=None if cache is None else os.fspath(cache))
        self._cluster = cluster
        self._on_event = on_event
        self._keyring = Keyring(self.settings.access, on_warning=self._warn)
        self._opened: Session | None = None
        self._exit = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        session = open_session(self.settings, self._keyring, self._on_event, self._cluster)
        self._opened = await self._exit.enter_async_context(session)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._opened = None
        await self._exit.aclose()

    async def resolve(self, source: str, platform: str | Platform | None = None) -> Image:
        """Return the image that a source names now.

        Args:
            source: ``REF``, ``docker://REF``, ``oci:DIR[:TAG|@DIGEST]``, ``oci-archive:FILE[:TAG|@DIGEST]``,
                ``docker-archive:FILE[:REF|:@NUMBER]``, ``docker-daemon:REF`` or ``containers-storage:REF``; or the
                path of a layout or an archive, see `fastpull.sources.local.is_path`.
            platform: ``os/architecture[/variant]``, by default the platform of this machine.

        Raises:
            InvalidReference, InvalidPlatform: an argument is malformed.
            TransportError, RegistryError, AccessDenied: the source cannot be read.
            UnsupportedMediaType: the source is not an image.
        """
        return await self._session.resolve(source, platform)

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
        """Make the root filesystem of an image.

        Nothing is done if the output exists already, was made from the same image in the same way, and shows no sign
        of a change, unless it is to be replaced.

        Args:
            image: the result of `resolve`, or a source as for `resolve`.
            output: a sink, or a path as for `sink_for`.
            platform: as for `resolve`.
            runtimes: the runtimes that will use the output, by their names in `RUNTIMES`. The files that they require
                are added to the output or placed beside it. Several are possible unless they conflict.
            trace: receives a timeline of the work, also after a failure.
            digest_file: the path of a file for the digest of the manifest, written when the output is complete; an
                existing regular file is replaced.

        Raises:
            Forbidden: the policy does not admit the image; nothing was requested.
            FastpullError: the pull failed; nothing was published, and the destination is unchanged.
        """
        task = pipeline.OutputTask(self._session, trace)
        return await task.pull(image, output, platform, runtimes, digest_file)

    async def ensure_squashfs(
        self,
        image: str | Image,
        recipe: Recipe | None = None,
        platform: str | Platform | None = None,
        *,
        holder: Holder | None = None,
        sync: bool | None = None,
    ) -> FinishedImage:
        """Return the finished squashfs file of an image in the cache; make it if it does not exist.

        Of all tasks, processes and nodes that request the same file, one makes it. The file is read-only and belongs
        to the cache: mount it or read it in place.

        Args:
            image: the result of `resolve`, or a source as for `resolve`.
            recipe: how the file is made, and for which runtimes; by default by the settings, for no runtime.
            platform: as for `resolve`.
            holder: the job step that uses the file from now on; the cache keeps the file until the step releases it.
            sync: whether the file must be on its disk before it appears; by default by the settings.

        Raises:
            Forbidden: the policy does not admit the image; nothing was requested.
            FastpullError: the file cannot be made; nothing was published, and no new pin remains.
        """
        return await pipeline.OutputTask(self._session).ensure_squashfs(image, recipe, platform, holder, sync)

    finish = ensure_squashfs
    """The former name of `ensure_squashfs`."""

    async def warm(
        self, sources: str | Iterable[str], *, jobs: int = 4, platform: str | Platform | None = None
    ) -> list[WarmReport]:
        """Download images into the cache; the failure of one does not stop the others.

        Args:
            sources: one or several sources as for `resolve`. A layout is verified in place.
            jobs: images that are fetched at once.
            platform: as for `resolve`.

        Returns:
            A report for each source, in the order of the sources.
        """
        session = self._session
        sources = [sources] if isinstance(sources, str) else sources
        permits = PrioritySemaphore(jobs)

        async def warm_one(rank: int, source: str) -> WarmReport:
            with await permits.acquire(rank):
                try:
                    return WarmReport(source, await pipeline.warm_source(session, source, platform, rank), None)
                except FastpullError as error:
                    return WarmReport(source, None, error)

        async with task_group() as group:
            tasks = [group.create_task(warm_one(rank, source)) for rank, source in enumerate(sources)]
        return [task.result() for task in tasks]

    @staticmethod
    def local_path(source: str) -> str | None:
        """Return the path of a source whose form means a local file or directory; None for any other source.

        Raises:
            InvalidSource, InvalidDigest: a part of the source is empty or malformed.
        """
        return path_of(source) if is_path(source) else None

    @property
    def _session(self) -> Session:
        if self._opened is None:
            raise RuntimeError("the client is not open, use it in: async with fastpull.Client() as client")
        return self._opened

    def _warn(self, subject: str, message: str) -> None:
        self._on_event(Warned(subject, message))


def pull(
    source: str,
    output: str | os.PathLike[str] | Sink,
    *,
    platform: str | None = None,
    runtimes: Iterable[str | RuntimeProfile] = (),
    settings: Settings | None = None,
    on_event: OnEvent = ignore,
) -> PullReport:
    """Make the root filesystem of an image; `Client.pull` for scripts that run no event loop."""

    async def run() -> PullReport:
        async with Client(settings, on_event=on_event) as client:
            return await client.pull(source, output, platform, runtimes=runtimes)

    return asyncio.run(run())
