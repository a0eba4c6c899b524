"""The squashfs sink: an image as one squashfs file, made without unpacking any of its files on the host.

While the layers stream, the payload of each becomes `LayerBlocks`. `commit` plans the image from the merged tree,
copies the live blocks behind each other, appends the metadata, writes the superblock last, and publishes the file.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fastpull.concurrency.threads import Aborted
from fastpull.concurrency.writes import pwrite_all
from fastpull.layers.tree import entry_of, layer_of
from fastpull.sinks.base import Resources
from fastpull.sinks.output.destination import free_space
from fastpull.sinks.output.errors import output_error, output_errors
from fastpull.sinks.output.file_staging import FileStaging
from fastpull.sinks.output.marker import Label
from fastpull.sinks.squashfs.blocks.batches import BATCH_SIZE, BufferPool
from fastpull.sinks.squashfs.blocks.compressors import DEFAULT_COMPRESSION
from fastpull.sinks.squashfs.blocks.layer_blocks import BlockFile, BlockFormat, LayerBlocks
from fastpull.sinks.squashfs.blocks.pool import CompressionPool
from fastpull.sinks.squashfs.blocks.serialize import load_layer_blocks, serialize_layer_blocks
from fastpull.sinks.squashfs.blocks.writer import LayerBlocksWriter
from fastpull.sinks.squashfs.image.fingerprint import file_fingerprint
from fastpull.sinks.squashfs.image.image_writer import ImageWriter, SquashfsReport, data_start
from fastpull.sinks.squashfs.image.transfer import transfer
from fastpull.sinks.squashfs.recipe import DEFAULT_BLOCK_SIZE, Recipe
from fastpull.telemetry.trace import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpull.cache.images.store import FinishedImage
    from fastpull.errors import OutputError
    from fastpull.layers.index import LayerIndex
    from fastpull.layers.tree import Origin, Tree
    from fastpull.native import EntryTable
    from fastpull.sinks.output.marker import Marker, OutputIdentity

_MAX_PENDING = 64


class Squashfs:
    """An image as a squashfs file.

    Args:
        path: the path of the file.
        force: replace an existing file.
        compression: ``zstd[:LEVEL]``, ``gzip[:LEVEL]``, ``lz4``, ``xz`` or ``none``, which stores the blocks of files
            uncompressed and compresses the rest.
        block_size: the size of data blocks, in bytes: a power of two from 4 KiB to 1 MiB.
        fragments: whether small files and tail-ends share fragment blocks.
        mtime: the time of all inodes, in seconds since the epoch; None for their own.
        time: the time of the image; by default ``SOURCE_DATE_EPOCH``, or ``created`` of the image's config.
        hard_link: allow the output to be a hard link to a finished image in the cache. It then takes no space, is
            read-only, and must not be written to.
        recipe: a recipe in place of the options from ``compression`` to ``time``.

    Attributes:
        path: the path as given.
        recipe: the options that determine the bytes of the file, together with the image.
        copied: the number of bytes that `take_finished` has copied so far; other threads may read it.
        on_layer_blocks: called with the layer's number and its blocks when `layer` begins to write them; reset by
            `begin`.

    Raises:
        InvalidSetting: from the constructor.
        OutputExists: from `begin`, if the path exists and ``force`` is not set.
        OutputError: from any method.

    Spec: SquashFS 4.0, Linux Documentation/filesystems/squashfs.rst.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        force: bool = False,
        compression: str = DEFAULT_COMPRESSION,
        block_size: int = DEFAULT_BLOCK_SIZE,
        fragments: bool = True,
        mtime: int | None = None,
        time: int | None = None,
        hard_link: bool = False,
        recipe: Recipe | None = None,
    ) -> None:
        if recipe is None:
            recipe = Recipe.of(compression, block_size, fragments=fragments, mtime=mtime, time=time)
        self.path = os.fspath(path)
        self.force = force
        self.recipe = recipe
        self._format = BlockFormat(recipe.compressor, recipe.block_size, recipe.fragments)
        self._hard_link = hard_link
        self._staging = FileStaging(path, force)
        self._identity: OutputIdentity | None = None
        self._inodes = 0
        self._resources = Resources()
        self._buffers = BufferPool(BATCH_SIZE + 2 * recipe.block_size)
        self._layers: dict[int, LayerBlocks] = {}
        self._ranks: dict[int, int] = {}
        self._cancelled = threading.Event()
        self.copied = 0
        self._executor: Executor | None = None
        self._pool: CompressionPool | None = None
        self.on_layer_blocks: Callable[[int, LayerBlocks], None] = _ignore

    def __repr__(self) -> str:
        return f"<Squashfs {self.path!r} {self._format.compressor.name}>"

    def recipe_facts(self) -> dict[str, Any]:
        """See `fastpull.sinks.capabilities.MarkedSink`."""
        return {"format": "squashfs", **self.recipe.tree_facts()}

    def read_marker(self) -> Marker | None:
        """See `fastpull.sinks.capabilities.MarkedSink`."""
        return self._staging.read_marker()

    def set_identity(self, identity: OutputIdentity) -> None:
        """See `fastpull.sinks.capabilities.MarkedSink`."""
        self._identity = identity

    def begin(self, resources: Resources) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._resources = resources
        self._layers.clear()
        self._ranks.clear()
        self._cancelled.clear()
        self.on_layer_blocks = _ignore
        self._staging.create(resources.keep_out)
        self._executor = ThreadPoolExecutor(resources.workers, "fastpull-compress")
        self._pool = CompressionPool(self._executor, resources.workers)

    def room(self) -> int:
        """See `fastpull.sinks.base.Sink`."""
        return free_space(self._staging.fd)

    # --- layers

    def layer(self, number: int, rank: int, entries: EntryTable, wanted: bytearray | None, /) -> LayerBlocksWriter:
        """See `fastpull.sinks.base.Sink`."""
        assert self._pool is not None, "the sink has begun"
        layer_blocks = self.open_layer_blocks(number, rank)
        self.on_layer_blocks(number, layer_blocks)
        # a batch is in memory twice: uncompressed and compressed
        batches = self._resources.memory // self._resources.layers // (2 * (BATCH_SIZE + self._format.block_size))
        return LayerBlocksWriter(
            layer_blocks,
            entries,
            self._format,
            pool=self._pool,
            buffers=self._buffers,
            max_pending=max(1, min(batches, 2 * self._resources.workers, _MAX_PENDING)),
            wanted=wanted,
            translate_error=self._translate_error,
            timing=self._resources.meter.layer(number),
        )

    def open_layer_blocks(self, number: int, rank: int) -> LayerBlocks:
        """Create the empty blocks of a layer, for `layer` to write or for another process to fill.

        Blocks that exist for the layer already are discarded.

        Args:
            number: the number of the layer.
            rank: see `layer`.

        Raises:
            OutputError: the files cannot be created.
        """
        if number in self._layers:
            _close(self._layers[number])
        with output_errors(self._staging.destination):
            opened = LayerBlocks(self._open_data_file(rank), BlockFile(self._staging.open_spool()))
        self._layers[number] = opened
        self._ranks[number] = rank
        return opened

    def save_layer_blocks(self, number: int, index: LayerIndex) -> int:
        """Append to the fragment file what `load_layer_blocks` needs, see `fastpull.sinks.squashfs.blocks.serialize`.

        Args:
            number: the number of the layer, which is complete.
            index: the index of the layer.

        Returns:
            The size of the fragment file, in bytes.

        Raises:
            OutputError: the file cannot be written.
        """
        saved = self._layers[number]
        with output_errors(self._staging.destination):
            content = serialize_layer_blocks(saved, index, self._format)
            return pwrite_all(saved.fragments.fd, saved.fragments.end, content)

    def load_layer_blocks(self, number: int, data_size: int, fragment_file_size: int, subject: str) -> LayerIndex:
        """Load the blocks of a layer from files that `save_layer_blocks` completed in another process.

        Args:
            number: the number of the layer.
            data_size: the size of the data blocks, in bytes.
            fragment_file_size: the size of the fragment file, in bytes.
            subject: the layer, for messages.

        Returns:
            The index of the layer.

        Raises:
            LayerBlocksDamaged: the files are inconsistent, or have another format.
            OutputError: the files cannot be read.
        """
        with output_errors(self._staging.destination):
            return load_layer_blocks(self._layers[number], data_size, fragment_file_size, self._format, subject)

    def read_file(self, origin: Origin, size: int) -> bytes:
        """Return the content of a small file of a complete layer.

        Raises:
            OutputError: the file cannot be read.
        """
        with output_errors(self._staging.destination):
            return self._layers[layer_of(origin)].read_file(entry_of(origin), size, self._format)

    # --- the image

    def commit(self, tree: Tree, created: int = 0, /) -> SquashfsReport:
        """See `fastpull.sinks.base.Sink`."""
        report = self.assemble(tree, created)
        self.publish()
        return report

    def assemble(self, tree: Tree, created: int = 0, /) -> SquashfsReport:
        """Write the complete file without publishing it: the first half of `commit`."""
        assert self._executor is not None, "the sink has begun"
        self._buffers.clear()
        layers = [self._layers[number] for number in range(len(tree.indexes))]
        order = sorted(self._ranks, key=self._ranks.__getitem__)
        time = created if self.recipe.time is None else self.recipe.time
        with output_errors(self._staging.destination):
            writer = ImageWriter(
                self._staging.fd,
                self._format,
                layers,
                order,
                tree,
                self._executor,
                self._check_cancelled,
                self._resources.meter.image,
            )
            report = writer.write(time, self.recipe.mtime, SquashfsReport(self.path))
        self._inodes = report.inodes
        return report

    def fingerprint(self) -> str:
        """Return the fingerprint of the file that `assemble` wrote, see `file_fingerprint`."""
        assert self._executor is not None, "the sink has begun"
        with output_errors(self._staging.destination):
            return file_fingerprint(self._staging.fd, self._executor, self._check_cancelled)

    def publish(self) -> None:
        """Publish the file that `assemble` wrote: the second half of `commit`."""
        with output_errors(self._staging.destination), self._resources.meter.image.timed(Stage.PUBLISH):
            self._staging.publish(self._resources.sync, Label.of(self._identity, self._inodes))
        self._end()

    def take_finished(self, image: FinishedImage) -> SquashfsReport | None:
        """Publish a finished image of the cache, in place of `layer` and `commit`.

        Returns:
            The report; None if the cached file is gone or damaged. Then nothing is published, and the sink can be used
            as before.

        Raises:
            OutputError: the output cannot be written.
            Aborted: `cancel` was called.
        """
        with output_errors(self._staging.destination):
            method = transfer(image, self._staging, self._on_copied, hard_link=self._hard_link)
            if method is None:
                return None
            report = SquashfsReport.of_finished(self.path, method, image.facts)
            # a hard link shares the marker of the cached file
            label = None if method == "linked" else Label.of(self._identity, report.inodes, image.metadata.fingerprint)
            self._staging.publish(self._resources.sync, label)
        self._end()
        return report

    def cancel(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._cancelled.set()

    def abort(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._cancelled.set()
        self._end()
        self._staging.remove()

    def _on_copied(self, count: int) -> None:
        self._check_cancelled()
        self.copied = count

    def _end(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None
        for layer_blocks in self._layers.values():
            _close(layer_blocks)
        self._layers.clear()

    def _open_data_file(self, rank: int) -> BlockFile:
        """Open the file for a layer's data blocks: for the largest layer the image itself, which saves a copy."""
        if rank:
            return BlockFile(self._staging.open_spool())
        fd = os.dup(self._staging.fd)
        os.ftruncate(fd, 0)
        return BlockFile(fd, data_start(self._format.compressor), is_image=True)

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Aborted

    def _translate_error(self, error: OSError) -> OutputError:
        return output_error(error, self._staging.destination)


def _close(layer_blocks: LayerBlocks) -> None:
    for block_file in (layer_blocks.data, layer_blocks.fragments):
        if block_file.fd >= 0:
            os.close(block_file.fd)
            block_file.fd = -1


def _ignore(_: int, __: LayerBlocks) -> None:
    pass
