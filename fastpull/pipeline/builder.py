"""Builders: where the layers of an image are built, and how the output is committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Protocol

from fastpull.concurrency.threads import in_thread

if TYPE_CHECKING:
    from fastpull.layers.index import LayerIndex
    from fastpull.layers.quota import Quota
    from fastpull.layers.tree import Origin, Tree
    from fastpull.sinks.base import Sink, SinkReport


class LayerBuilder(Protocol):
    """Builds the layers of one image: `LocalBuilder`, or `fastpull.pipeline.distributed.DistributedBuilder`.

    Attributes:
        may_skip: whether a layer may omit what the predicted tree does not need; not if other nodes use the layer.
    """

    may_skip: bool

    async def build(self, number: int, quota: Quota, unpack: Callable[[], Awaitable[LayerIndex]], /) -> LayerIndex:
        """Return the index of a layer whose payload the sink has.

        Args:
            number: number of the layer; 0 is the base.
            quota: quota of the image.
            unpack: unpacks the layer on this node.

        Raises:
            FastpullError: the layer cannot be built.
        """

    async def read_file(self, origin: Origin, size: int) -> bytes:
        """Return the content of a small file of a layer that was built."""

    async def commit(self, tree: Tree, created: int) -> SinkReport:
        """Make the output from the merged tree, and publish it.

        Raises:
            OutputError: the output cannot be made; the sink must be aborted.
        """


class LocalBuilder:
    """Builds all layers on this node.

    Args:
        sink: the sink, already begun.
        files: threads for blocking calls.
        read_file: reads a small file of a layer out of the layer's blob.
    """

    may_skip = True

    def __init__(self, sink: Sink, files: Executor, read_file: Callable[[Origin, int], Awaitable[bytes]]) -> None:
        self._sink = sink
        self._files = files
        self._read_file = read_file

    async def build(self, _number: int, _quota: Quota, unpack: Callable[[], Awaitable[LayerIndex]], /) -> LayerIndex:
        """See `LayerBuilder.build`."""
        return await unpack()

    async def read_file(self, origin: Origin, size: int) -> bytes:
        """See `LayerBuilder.read_file`."""
        return await self._read_file(origin, size)

    async def commit(self, tree: Tree, created: int) -> SinkReport:
        """See `LayerBuilder.commit`."""
        return await in_thread(self._files, self._sink.commit, tree, created, abort=self._sink.cancel)
