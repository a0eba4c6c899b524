"""What carries bytes between ranks: the little that the rest of this room knows of MPI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

WINDOW_SIZE = 4 << 20
"""Bytes of a blob that travel at once, at most: what is lost to each message is small beside it."""

HEADER_SIZE = 64
"""In front of the bytes of a window; see `fastpull.cluster.transport.frame`."""

OnMessage = Callable[[int, bytes], None]
"""Gets (sender, message), on the event loop's thread; messages of one sender come in their order."""

OnWindow = Callable[[int, memoryview], Awaitable[None]]
"""Gets (sender, header and bytes); the memory is used for something else when it has ended."""


class Fabric(Protocol):
    """Messages and windows between the ranks of a job.

    Attributes:
        rank: of this process.
        size: how many ranks there are.
        node: the lowest rank of those that share this process's node.
    """

    rank: int
    size: int
    node: int

    def start(self, on_message: OnMessage, on_window: OnWindow, on_error: Callable[[Exception], None]) -> None:
        """Begins to deliver. As many windows are delivered at once as there are buffers; the others wait."""

    def post(self, to: int, message: bytes) -> None:
        """Sends a small message; returns at once. Nobody is told if it does not arrive."""

    async def send(self, to: int, window: memoryview) -> None:
        """Sends a window; returns when its memory may be used again, which is never if the receiver has died."""

    async def leave(self) -> None:
        """Ends the traffic together with all other ranks; what was posted arrives before."""
