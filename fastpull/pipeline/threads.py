"""The threads of a session."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastpull.concurrency.semaphores import PrioritySemaphore


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads of a session.

    Attributes:
        files: for blocking calls on files.
        workers: for layers, one thread per layer.
        helpers: for hashing and for inflating ahead.
        hashes_aside: whether there are spare cores for hashing.
        permits: one permit per thread of `workers`.
    """

    files: Executor
    workers: Executor
    helpers: Executor
    hashes_aside: bool
    permits: PrioritySemaphore
