"""Outputs that exist unchanged: recognised by their marker, and not made again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from fastpull.concurrency.threads import in_thread
from fastpull.errors import OutputExists
from fastpull.pipeline.report import PullReport
from fastpull.sinks.base import SinkReport
from fastpull.sinks.capabilities import MarkedSink
from fastpull.sinks.output.marker import OutputIdentity
from fastpull.telemetry.events import OnEvent, Unchanged

if TYPE_CHECKING:
    from fastpull.oci.image import Image
    from fastpull.runtimes.base import RuntimeProfile
    from fastpull.sinks.base import Sink


async def find_unchanged(
    sink: Sink,
    profiles: Sequence[RuntimeProfile],
    resolve: Callable[[], Awaitable[Image]],
    executor: Executor,
    on_event: OnEvent,
) -> PullReport | None:
    """Finds out whether an output is there that would be made the same again.

    Args:
        sink: that would make it; not begun.
        profiles: of the runtimes that it is for, all fastpull's own.
        resolve: finds the image; called only where there is an output that tells what it is.
        executor: for blocking calls.
        on_event: told if it is there.

    Returns:
        The report on it; None if there is no output of which that can be known, or it is to be replaced.

    Raises:
        OutputExists: what is there is something else.
    """
    if not isinstance(sink, MarkedSink):
        return None
    marker = await in_thread(executor, sink.read_marker)
    if marker is None:
        return None
    image = await resolve()
    identity = OutputIdentity.of(image, sink.recipe_facts(), [profile.name for profile in profiles])
    if marker.identity != identity:
        is_same_image = marker.identity.image == identity.image
        what = "this image, made in another way," if is_same_image else f"another image ({marker.identity.image})"
        raise OutputExists(sink.path, f"{what} is there")
    on_event(Unchanged(image.source, sink.path))
    return PullReport.of_unchanged(image, SinkReport(sink.path, marker.inodes))


def set_identity(sink: Sink, image: Image, profiles: Sequence[RuntimeProfile] | None) -> None:
    """Tells a sink what its output will be.

    Args:
        sink: not committed yet.
        image: that it is made of.
        profiles: of the runtimes that it is for; None if one of them is the caller's own.
    """
    if isinstance(sink, MarkedSink):
        names = None if profiles is None else [profile.name for profile in profiles]
        sink.set_identity(OutputIdentity.of(image, sink.recipe_facts(), names))
