"""What all pulls of a client share."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpull.cache.store import Store
    from fastpull.concurrency.semaphores import PrioritySemaphore
    from fastpull.config.limits import Limits
    from fastpull.layers.windows import WindowMemory
    from fastpull.telemetry.events import OnEvent


@dataclass(frozen=True, slots=True)
class PullContext:
    """What all pulls of a client share.

    Attributes:
        store: the cache.
        files: for blocking calls on files, which do not wait for bytes to come.
        workers: for layers, one thread each.
        helpers: for what the layers' threads need not do themselves; nothing there waits for anything. None where there
            are no cores to spare.
        turns: as many as there are workers.
        windows: memory for what inflaters keep.
        on_event: told what happens.
        limits: how much each image may take.
    """

    store: Store
    files: Executor
    workers: Executor
    helpers: Executor | None
    turns: PrioritySemaphore
    windows: WindowMemory
    on_event: OnEvent
    limits: Limits
