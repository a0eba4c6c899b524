"""A squashfs image made by the nodes of a job together: each compresses some layers for all, and each assembles all.

::

    a layer:   is it mine? ── yes ──> unpack as on one node, and give what grows of its run ─> save, seal
                              no  ──> its run comes ─> load
    the image: all have all ─> assemble ─> fingerprint ─> all have the same ─> publish
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

_BULK, _REST = 0, 1  # the files of a product: blocks; fragment blocks, and what has to be known of the run


class DistributedBuilder:
    """One rank's part in an image. Made by `begin`.

    Args:
        image: with its layers.
        sink: begun already.
        files: for blocking calls.
        products: the runs, as the cluster knows them.
        building: this rank's part in making them.
    """

    def __init__(
        self, image: Image, sink: DistributedSink, files: Executor, products: list[LayerArtifact], building: BuildMember
    ) -> None:
        self._image = image
        self._sink = sink
        self._files = files
        self._products = products
        self._building = building

    @classmethod
    async def begin(
        cls, image: Image, source: Source, sink: Sink, files: Executor, by_size: Sequence[int]
    ) -> Self | None:
        """Takes part, if there are others to share the work with.

        Args:
            image: with its layers.
            source: of the image.
            sink: begun already.
            files: for blocking calls.
            by_size: the numbers of the layers, that with the largest blob first.

        Raises:
            OutputError, CacheError: there is no room for what will come.
        """
        if not isinstance(source, ClusterSource) or not isinstance(sink, DistributedSink) or not source.is_shared:
            return None
        products = await in_thread(files, _open_products, image, sink, by_size)
        building = None
        try:
            building = await source.build(products)
        finally:
            if building is None:
                for product in products:
                    product.close()
        return None if building is None else cls(image, sink, files, products, building)

    async def layer(self, number: int, quota: Quota, make: Callable[[], Awaitable[LayerIndex]]) -> LayerIndex:
        """Makes the run of a layer, or waits for it; returns the layer's index.

        Args:
            number: of the layer.
            quota: of the image; what other nodes have unpacked counts here as well.
            make: unpacks the layer into the sink.

        Raises:
            FastpullError: what `make` raises.
            RunDamaged: what came is not the run of this layer.
        """
        product = self._products[number]
        if await self._building.is_mine(number):
            index = await make()
            await in_thread(self._files, self._save, product, index)
            await self._building.finish(number)
            return index
        return await in_thread(self._files, self._load, product, quota)

    def _save(self, product: LayerArtifact, index: LayerIndex) -> None:
        product.grow(_REST, self._sink.save_layer_blocks(product.layer, index))

    def _load(self, product: LayerArtifact, quota: Quota) -> LayerIndex:
        assert product.seal is not None, "it is not to be made here, so it has come"
        number, subject, layer = product.layer, product.subject, self._image.layers[product.layer]
        index = self._sink.load_layer_blocks(number, product.seal.bulk_size, product.seal.rest_size, subject)
        if (index.blob, index.diff_id) != (layer.blob.digest, layer.diff_id):
            raise LayerBlocksDamaged(subject, f"it is that of the layer {index.blob}")
        LayerQuota(quota, number, subject).check(layer.blob.size, index.size, sum(index.sizes), index)
        return index

    async def read_file(self, origin: Origin, size: int) -> bytes:
        """Reads a small file out of the run of its layer."""
        return await in_thread(self._files, self._sink.read_file, origin, size)

    async def commit(self, tree: Tree, created: int) -> SquashfsReport:
        """Assembles the image once all nodes have all runs, and publishes it once all have made the same.

        Raises:
            OutputDiffers: this node has made something else; nothing was published.
            OutputError: as from the sink.
        """
        sink, files = self._sink, self._files
        await self._building.gathered()
        report = await in_thread(files, sink.assemble, tree, created, abort=sink.cancel)
        await self._building.agree(await in_thread(files, sink.fingerprint, abort=sink.cancel))
        await in_thread(files, sink.publish)
        return report


def _open_products(image: Image, sink: DistributedSink, by_size: Sequence[int]) -> list[LayerArtifact]:
    """Makes room for all runs: who is to make which is not known yet."""

    def fail(error: OSError) -> OutputError:
        return output_error(error, sink.path)

    products: list[LayerArtifact] = []
    try:
        for number, layer in enumerate(image.layers):
            subject = f"layer {number + 1} of {len(image.layers)} of {image.source}, {layer.blob.digest}"
            products.append(LayerArtifact(number, subject, fail))
            _join(products[-1], sink.open_layer_blocks(number, by_size.index(number)))
    except BaseException:
        for product in products:
            product.close()
        raise

    def on_layer_blocks(number: int, blocks: LayerBlocks) -> None:
        if number < len(products):  # what runtimes want on top is made by each node itself
            product = products[number]
            _join(product, blocks)
            product.make()

    sink.on_layer_blocks = on_layer_blocks
    return products


def _join(product: LayerArtifact, blocks: LayerBlocks) -> None:
    """Has what grows of a run told."""
    base = blocks.data.end
    product.open(FileRegion(blocks.data.fd, base), FileRegion(blocks.fragments.fd))
    blocks.data.on_append = lambda end: product.grow(_BULK, end - base)
    blocks.fragments.on_append = partial(product.grow, _REST)
