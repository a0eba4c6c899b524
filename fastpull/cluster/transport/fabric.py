"""The interface to the network between ranks. The rest of this package does not know MPI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

MAX_PAYLOAD = 4 << 20
"""The most bytes in one frame: large enough that the cost of a message does not matter."""

HEADER_SIZE = 64
"""The bytes before the payload of a frame; see `fastpull.cluster.transport.frame`."""

OnMessage = Callable[[int, bytes], None]
"""Receives (sender, message) on the event loop's thread; messages of one sender arrive in order."""

OnFrame = Callable[[int, memoryview], Awaitable[None]]
"""Receives (sender, header and payload); the memory is reused after it returns."""


class Fabric(Protocol):
    """Messages and frames between the ranks of a job.

    Attributes:
        rank: the rank of this process.
        size: the number of ranks.
        node: the lowest rank on this process's node.
    """

    rank: int
    size: int
    node: int

    def start(self, on_message: OnMessage, on_frame: OnFrame, on_error: Callable[[Exception], None]) -> None:
        """Begin to deliver. As many frames are delivered at a time as there are buffers; further frames wait."""

    def send_message(self, to: int, message: bytes) -> None:
        """Send a small message; return at once. No error is reported if it does not arrive."""

    async def send_frame(self, to: int, frame: memoryview) -> None:
        """Send a frame; return when its memory may be reused, which is never if the receiver has died."""

    async def leave(self) -> None:
        """End the traffic together with all other ranks, after the delivery of all messages."""
