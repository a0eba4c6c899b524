"""The importer: what pyxis calls on a node to get a squashfs file for a step of a job, and to give it back.

Spec: pyxis importers/README.md; docs/slurm.md tells what a site sets up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastpull.cache.files import CacheFiles
from fastpull.cache.images.pins import Holder, Pins
from fastpull.config.settings import Settings
from fastpull.errors import InvalidSetting
from fastpull.telemetry.events import OnEvent, ignore

if TYPE_CHECKING:
    from fastpull.cache.images.store import FinishedImage
    from fastpull.sinks.squashfs.recipe import Recipe

_JOB, _STEP = "SLURM_JOB_ID", "SLURM_STEP_ID"


class Importer:
    """Gets finished images for one step on one node, out of a cache that many share.

    Args:
        settings: by default those of the environment.
        environment: with the ids of the job and its step, as Slurm sets them.
        on_event: told what happens, on the event loop's thread.

    Raises:
        InvalidSetting: from the constructor.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        environment: Mapping[str, str] = os.environ,
        *,
        on_event: OnEvent = ignore,
    ) -> None:
        self._settings = settings or Settings.load()
        self._environment = environment
        self._on_event = on_event

    async def get(self, uri: str) -> FinishedImage:
        """Makes sure that the squashfs file of an image is there, and holds it for the step until `release`.

        It has what ``enroot import`` would have put into it, see `fastpull.runtimes.enroot`.

        Of all that ask for an image at the same time, on whatever node, one makes it. It may be called again, for the
        same image or another one.

        Args:
            uri: as enroot has it: ``docker://[USER@][REGISTRY#]IMAGE[:TAG|@DIGEST]``.

        Raises:
            InvalidReference: it is no such URI.
            InvalidSetting: there is no step in the environment, or the cache has no absolute path.
            FastpullError: whatever else went wrong; nothing is held then.
        """
        holder = self._holder()
        if holder is None:
            missing = _STEP if self._environment.get(_JOB) else _JOB
            raise InvalidSetting(missing, "an importer works for a step of a Slurm job, whose environment has to have")
        root = self._settings.cache
        if not os.path.isabs(root) or "\n" in root:
            reason = (
                "the cache needs an absolute path in one line, set it with FASTPULL_CACHE or in a configuration file"
            )
            raise InvalidSetting(root, reason)
        from fastpull.client import Client  # noqa: PLC0415  # `release` does not need it
        from fastpull.runtimes.enroot_command import EnrootUri  # noqa: PLC0415

        source = str(EnrootUri.parse(uri).reference)  # without its user: a login is found by its registry
        async with Client(self._settings, on_event=self._on_event) as client:
            # other nodes cannot know of an image that is not synced whether it is whole, and would all read it
            return await client.finish(source, self._recipe(), holder=holder, sync=True)

    def release(self) -> None:
        """Gives back what the step holds on this node. May be called twice, and where nothing is held.

        Raises:
            CacheError: the filesystem refuses.
        """
        holder = self._holder()
        if holder is not None and os.path.isdir(os.path.join(self._settings.cache, "v1")):
            Pins(CacheFiles(self._settings.cache)).release(holder)

    def _holder(self) -> Holder | None:
        job, step = self._environment.get(_JOB), self._environment.get(_STEP)
        return Holder.here(job, step) if job and step else None

    def _recipe(self) -> Recipe:
        from fastpull.sinks.squashfs.recipe import Recipe  # noqa: PLC0415  # `release` does not need it

        return Recipe.of(self._settings.compression, self._settings.block_size, runtimes=("enroot",))
