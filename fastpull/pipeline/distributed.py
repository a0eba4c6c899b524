"""A squashfs image built by the nodes of a job together: each builds some layers for all, and assembles the image.

::

    a layer:   assigned to this node? ── yes ──> unpack, send its blocks while they grow ──> save, send the trailer
                                      ── no  ──> receive its blocks ──> load
    the image: all nodes have all layers ──> assemble ──> fingerprint ──> equal on all nodes ──> publish
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Self

from fastpull.cluster.blobs.source import ClusterSource
from fastpull.cluster.build.artifacts import FileRegion, LayerArtifact
from fastpull.concurrency.threads import in_thread
from fastpull.errors import LayerBlocksDamaged, OutputError
from fastpull.layers.quota import LayerQuota
from fastpull.sinks.capabilities import DistributedSink
from fastpull.sinks.output.errors import output_error

if TYPE_CHECKING:
    from fastpull.cluster.build.member import BuildMember
    from fastpull.layers.index import LayerIndex
    from fastpull.layers.quota import Quota
    from fastpull.layers.tree import Origin, Tree
    from fastpull.oci.image import Image
    from fastpull.sinks.base import Sink
    from fastpull.sinks.squashfs.blocks.layer_blocks import LayerBlocks
    from fastpull.sinks.squashfs.image.image_writer import SquashfsReport
    from fastpull.sources.base import Source

_BULK, _REST = 0, 1  # the files of an artifact: its blocks; its fragment blocks and tables


class DistributedBuilder:
    """Builds the layers that are assigned to this rank, and receives the others; a `LayerBuilder`. Made by `begin`.

    Args:
        image: the image, with its layers.
        sink: the sink, already begun.
        files: threads for blocking calls.
        artifacts: the layers' block files, as the cluster exchanges them.
        member: this rank as a member of the build.
    """

    may_skip = False  # other nodes use the layers, too

    def __init__(
        self, image: Image, sink: DistributedSink, files: Executor, artifacts: list[LayerArtifact], member: BuildMember
    ) -> None:
        self._image = image
        self._sink = sink
        self._files = files
        self._artifacts = artifacts
        self._member = member

    @classmethod
    async def begin(
        cls, image: Image, source: Source, sink: Sink, files: Executor, by_size: Sequence[int]
    ) -> Self | None:
        """Join the build of an image; None if there are no other nodes, or the sink cannot be distributed.

        Args:
            image: the image, with its layers.
            source: the source of the image.
            sink: the sink, already begun.
            files: threads for blocking calls.
            by_size: numbers of the layers, the largest blob first.

        Raises:
            OutputError, CacheError: there is not enough space.
        """
        if not isinstance(source, ClusterSource) or not isinstance(sink, DistributedSink) or not source.is_shared:
            return None
        artifacts = await in_thread(files, _open_artifacts, image, sink, by_size)
        member = None
        try:
            member = await source.build(artifacts)
        finally:
            if member is None:
                for artifact in artifacts:
                    artifact.close()
        return None if member is None else cls(image, sink, files, artifacts, member)

    async def build(self, number: int, quota: Quota, unpack: Callable[[], Awaitable[LayerIndex]], /) -> LayerIndex:
        """Build a layer, or wait until another node has built it; return its index.

        Args:
            number: number of the layer.
            quota: quota of the image; it also counts the layers of other nodes.
            unpack: unpacks the layer into the sink.

        Raises:
            FastpullError: `unpack` failed.
            LayerBlocksDamaged: the received files are not those of the layer.
        """
        artifact = self._artifacts[number]
        if await self._member.is_mine(number):
            index = await unpack()
            await in_thread(self._files, self._save, artifact, index)
            await self._member.finish(number)
            return index
        return await in_thread(self._files, self._load, artifact, quota)

    def _save(self, artifact: LayerArtifact, index: LayerIndex) -> None:
        artifact.mark_written(_REST, self._sink.save_layer_blocks(artifact.layer, index))

    def _load(self, artifact: LayerArtifact, quota: Quota) -> LayerIndex:
        assert artifact.trailer is not None, "a layer of another node has been received"
        number, subject, layer = artifact.layer, artifact.subject, self._image.layers[artifact.layer]
        index = self._sink.load_layer_blocks(number, artifact.trailer.bulk_size, artifact.trailer.rest_size, subject)
        if (index.blob, index.diff_id) != (layer.blob.digest, layer.diff_id):
            raise LayerBlocksDamaged(subject, f"it is that of the layer {index.blob}")
        LayerQuota(quota, number, subject).check(layer.blob.size, index.size, sum(index.sizes), index)
        return index

    async def read_file(self, origin: Origin, size: int) -> bytes:
        """Return the content of a small file out of its layer's blocks."""
        return await in_thread(self._files, self._sink.read_file, origin, size)

    async def commit(self, tree: Tree, created: int) -> SquashfsReport:
        """Assemble the image when all nodes have all layers; publish it when all nodes have assembled the same image.

        Raises:
            OutputDiffers: the image of this node differs from the others; nothing was published.
            OutputError: the sink failed.
        """
        sink, files = self._sink, self._files
        await self._member.gathered()
        report = await in_thread(files, sink.assemble, tree, created, abort=sink.cancel)
        await self._member.agree(await in_thread(files, sink.fingerprint, abort=sink.cancel))
        await in_thread(files, sink.publish)
        return report


def _open_artifacts(image: Image, sink: DistributedSink, by_size: Sequence[int]) -> list[LayerArtifact]:
    """Open the block files of all layers; which node builds which layer is decided later."""

    def fail(error: OSError) -> OutputError:
        return output_error(error, sink.path)

    artifacts: list[LayerArtifact] = []
    try:
        for number, layer in enumerate(image.layers):
            subject = f"layer {number + 1} of {len(image.layers)} of {image.source}, {layer.blob.digest}"
            artifacts.append(LayerArtifact(number, subject, fail))
            _join(artifacts[-1], sink.open_layer_blocks(number, by_size.index(number)))
    except BaseException:
        for artifact in artifacts:
            artifact.close()
        raise

    def on_layer_blocks(number: int, blocks: LayerBlocks) -> None:
        if number < len(artifacts):  # each node makes the runtime layer itself
            artifact = artifacts[number]
            _join(artifact, blocks)
            artifact.build()

    sink.on_layer_blocks = on_layer_blocks
    return artifacts


def _join(artifact: LayerArtifact, blocks: LayerBlocks) -> None:
    """Report the growth of a layer's blocks to its artifact."""
    base = blocks.data.end
    artifact.open(FileRegion(blocks.data.fd, base), FileRegion(blocks.fragments.fd))
    blocks.data.on_append = lambda end: artifact.mark_written(_BULK, end - base)
    blocks.fragments.on_append = partial(artifact.mark_written, _REST)
