"""The importer: pyxis calls it on a node to get a squashfs image for a job step, and to release it.

Spec: pyxis importers/README.md. docs/slurm.md describes the set-up of a site.
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
    """Gets finished images from the cache for one job step on one node.

    Args:
        settings: by default those of the environment.
        environment: variables, with the IDs of the Slurm job and its step.
        on_event: called with each event, on the event loop's thread.

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
        """Ensure that the cache has the squashfs image, and pin it for the step until `release`.

        The image has the files that ``enroot import`` would add, see `fastpull.runtimes.enroot`. Of all processes that
        ask for an image at the same time, on all nodes, one makes it. May be called again, for the same image or
        another.

        Args:
            uri: enroot's URI: ``docker://[USER@][REGISTRY#]IMAGE[:TAG|@DIGEST]``.

        Raises:
            InvalidReference: the URI is invalid.
            InvalidSetting: the environment names no job step, or the cache has no absolute path.
            FastpullError: any other error; no pin is left.
        """
        holder = self._holder()
        if holder is None:
            missing = _STEP if self._environment.get(_JOB) else _JOB
            raise InvalidSetting(missing, "an importer works for a step of a Slurm job; its environment must have")
        root = self._settings.cache
        if not os.path.isabs(root) or "\n" in root:
            reason = (
                "the cache needs an absolute path in one line; set it with FASTPULL_CACHE or in a configuration file"
            )
            raise InvalidSetting(root, reason)
        from fastpull.client import Client  # noqa: PLC0415  # `release` does not need it
        from fastpull.runtimes.enroot_command import EnrootUri  # noqa: PLC0415

        source = str(EnrootUri.parse(uri).reference)  # without its user, since the keyring finds logins by registry
        async with Client(self._settings, on_event=self._on_event) as client:
            # an image that is not synced may be incomplete for other nodes, so that each would hash it
            return await client.ensure_squashfs(source, self._recipe(), holder=holder, sync=True)

    def release(self) -> None:
        """Release the step's pins on this node. May be called twice, and without a pin.

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
