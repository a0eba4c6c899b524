"""The resources that all pulls of a client share."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpull.concurrency.cores import IdleCores
from fastpull.layers.windows import WindowMemory

if TYPE_CHECKING:
    from fastpull.cache.store import Store
    from fastpull.concurrency.budget import ByteBudget
    from fastpull.concurrency.semaphores import PrioritySemaphore
    from fastpull.config.limits import Limits
    from fastpull.config.settings import Settings
    from fastpull.pipeline.threads import Threads
    from fastpull.telemetry.events import OnEvent

_DOWNLOAD_RESERVE = 16 << 20  # bytes of the budget that downloads keep: four connections


@dataclass(frozen=True, slots=True)
class PullContext:
    """The resources that all pulls of a client share.

    Attributes:
        store: the cache.
        files: threads for blocking calls on files; none of these calls waits for a download.
        workers: threads for layers, one thread per layer.
        helpers: threads for hashing and for inflating ahead; a call there waits for nothing.
        hashes_aside: whether `helpers` hash what the threads of the layers inflate.
        cores: the idle cores.
        permits: one permit per thread of `workers`.
        windows: memory for the windows of inflaters.
        on_event: receives all events.
        limits: limits of each image.
    """

    store: Store
    files: Executor
    workers: Executor
    helpers: Executor
    hashes_aside: bool
    cores: IdleCores
    permits: PrioritySemaphore
    windows: WindowMemory
    on_event: OnEvent
    limits: Limits


def make_context(
    threads: Threads, store: Store, budget: ByteBudget, settings: Settings, on_event: OnEvent
) -> PullContext:
    """Return the context of a session; it must be made once, because it owns the memory for windows."""
    return PullContext(
        store,
        threads.files,
        threads.workers,
        threads.helpers,
        threads.hashes_aside,
        IdleCores(settings.workers),
        threads.permits,
        _window_memory(budget),
        on_event,
        settings.limits,
    )


def _window_memory(budget: ByteBudget) -> WindowMemory:
    """Return memory for windows that is taken from the budget of downloads.

    Downloads keep a reserve, because a layer that holds a window waits for its own download.
    """
    loop, total = asyncio.get_running_loop(), budget.total
    reserve = min(_DOWNLOAD_RESERVE, total // 2)

    def on_change(taken: int) -> None:
        loop.call_soon_threadsafe(budget.resize, max(reserve, total - taken))

    return WindowMemory(total - reserve, on_change)
