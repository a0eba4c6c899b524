"""The squashfs sink: an image as one squashfs file, without a file of the image ever being made on the host.

While layers stream, each becomes a run. `commit` plans the image, puts the live parts of the runs behind each other,
appends the metadata, writes the superblock last, and gives the file its name.
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
from fastpull.sinks.squashfs.blocks.batches import BATCH, Buffers
from fastpull.sinks.squashfs.blocks.compressors import DEFAULT_COMPRESSION
from fastpull.sinks.squashfs.blocks.layer_blocks import BlockFile, BlockFormat, LayerBlocks
from fastpull.sinks.squashfs.blocks.pool import CompressionPool
from fastpull.sinks.squashfs.blocks.transfer_file import pack_run, unpack_run
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

_MAX_DEPTH = 64


class Squashfs:
    """An image as a squashfs file.

    Args:
        path: of the file.
        force: replace what is there.
        compression: ``zstd[:LEVEL]``, ``gzip[:LEVEL]``, ``lz4``, ``xz`` or ``none``, which leaves the blocks of files
            as they are and compresses the rest.
        block_size: of data blocks, in bytes: a power of two from 4 KiB to 1 MiB.
        fragments: whether small files and tails of files share blocks.
        mtime: for all inodes, in place of their own, in seconds since the epoch.
        time: of the image itself; by default that of ``SOURCE_DATE_EPOCH``, or its config's ``created``.
        hard_link: where the cache has the finished file, the output may be another name of it. It takes no space then,
            is read-only, and must not be written to.
        recipe: in place of the options from ``compression`` to ``time``.

    Attributes:
        path: as it was given.
        recipe: all that decides on the bytes, beside the image.
        copied: bytes that `take` has copied so far; other threads may look.
        on_run: told of each run that `layer` begins to write, until the sink begins again: (layer, run).

    Raises:
        InvalidSetting: from the constructor.
        OutputExists: from `begin`, if the path is in use.
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
        self._buffers = Buffers(BATCH + 2 * recipe.block_size)
        self._runs: dict[int, LayerBlocks] = {}
        self._ranks: dict[int, int] = {}
        self._cancelled = threading.Event()
        self.copied = 0
        self._pool: Executor | None = None
        self._crew: CompressionPool | None = None
        self.on_run: Callable[[int, LayerBlocks], None] = _ignore

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
        self._runs.clear()
        self._ranks.clear()
        self._cancelled.clear()
        self.on_run = _ignore
        self._staging.create(resources.keep_out)
        self._pool = ThreadPoolExecutor(resources.workers, "fastpull-compress")
        self._crew = CompressionPool(self._pool, resources.workers)

    def room(self) -> int:
        """See `fastpull.sinks.base.Sink`."""
        return free_space(self._staging.fd)

    def layer(self, number: int, rank: int, entries: EntryTable, wanted: bytearray | None, /) -> LayerBlocksWriter:
        """See `fastpull.sinks.base.Sink`."""
        assert self._crew is not None, "the sink has begun"
        run = self.open_run(number, rank)
        self.on_run(number, run)
        # a batch is there twice, as it came and compressed
        share = self._resources.memory // self._resources.layers // (2 * (BATCH + self._format.block_size))
        return LayerBlocksWriter(
            run,
            entries,
            self._format,
            crew=self._crew,
            buffers=self._buffers,
            depth=max(1, min(share, 2 * self._resources.workers, _MAX_DEPTH)),
            wanted=wanted,
            fail=self._error,
            part=self._resources.meter.layer(number),
        )

    def open_run(self, number: int, rank: int) -> LayerBlocks:
        """Makes room for the run of a layer, that `layer` will write or that will come from elsewhere.

        Args:
            number: of the layer.
            rank: as for `layer`.

        Raises:
            OutputError: there is none.
        """
        if number in self._runs:
            self._forget(self._runs[number])
        with output_errors(self._staging.destination):
            run = self._runs[number] = LayerBlocks(self._open_blocks(rank), BlockFile(self._staging.open_spool()))
        self._ranks[number] = rank
        return run

    def save_run(self, number: int, index: LayerIndex) -> int:
        """Puts behind the fragment blocks of a run all else that has to be known of it, see `run_file`.

        Args:
            number: of the layer, which is complete.
            index: of the layer.

        Returns:
            Where the file with the fragment blocks ends.

        Raises:
            OutputError: the filesystem refuses.
        """
        run = self._runs[number]
        with output_errors(self._staging.destination):
            return pwrite_all(run.fragments.fd, run.fragments.end, pack_run(run, index, self._format))

    def load_run(self, number: int, blocks_size: int, rest_size: int, subject: str) -> LayerIndex:
        """Takes over a run whose files were filled with what `layer` and `save_run` have made elsewhere.

        Args:
            number: of the layer.
            blocks_size: bytes of its blocks.
            rest_size: bytes of the file with the fragment blocks.
            subject: the layer, for messages.

        Returns:
            The index of the layer.

        Raises:
            RunDamaged: the files are not such a run's.
            OutputError: they cannot be read.
        """
        with output_errors(self._staging.destination):
            return unpack_run(self._runs[number], blocks_size, rest_size, self._format, subject)

    def read_file(self, origin: Origin, size: int) -> bytes:
        """The content of a small file of a layer whose run is complete.

        Raises:
            OutputError: it cannot be read.
        """
        with output_errors(self._staging.destination):
            return self._runs[layer_of(origin)].content(entry_of(origin), size, self._format)

    def commit(self, tree: Tree, created: int = 0, /) -> SquashfsReport:
        """See `fastpull.sinks.base.Sink`."""
        report = self.assemble(tree, created)
        self.publish()
        return report

    def assemble(self, tree: Tree, created: int = 0, /) -> SquashfsReport:
        """The first part of `commit`: all but giving the file its name."""
        assert self._pool is not None, "the sink has begun"
        self._buffers.drop()
        runs = [self._runs[number] for number in range(len(tree.indexes))]
        order = sorted(self._ranks, key=self._ranks.__getitem__)
        with output_errors(self._staging.destination):
            part = self._resources.meter.image
            assembly = ImageWriter(
                self._staging.fd, self._format, runs, order, tree, self._pool, self._check_cancelled, part
            )
            time = created if self.recipe.time is None else self.recipe.time
            report = assembly.write(time, self.recipe.mtime, SquashfsReport(self.path))
            self._inodes = report.inodes
            return report

    def fingerprint(self) -> str:
        """The fingerprint of the file that `assemble` has made, see `file_fingerprint`."""
        assert self._pool is not None, "the sink has begun"
        with output_errors(self._staging.destination):
            return file_fingerprint(self._staging.fd, self._pool, self._check_cancelled)

    def publish(self) -> None:
        """The second part of `commit`."""
        with output_errors(self._staging.destination), self._resources.meter.image.at(Stage.PUBLISH):
            self._staging.publish(self._resources.sync, Label.of(self._identity, self._inodes))
        self._end()

    def take(self, image: FinishedImage) -> SquashfsReport | None:
        """Publishes a finished image of the cache, in place of what `layer` and `commit` would make.

        Returns:
            None if the file is gone or damaged; nothing is published then, and the sink may go on as if not asked.

        Raises:
            OutputError, Aborted: as from `commit`.
        """
        with output_errors(self._staging.destination):
            way = transfer(image, self._staging, self._on_copied, hard_link=self._hard_link)
            if way is None:
                return None
            report = SquashfsReport.of_finished(self.path, way, image.facts)
            # another name of the cache's file has that file's own marker
            label = None if way == "linked" else Label.of(self._identity, report.inodes, image.metadata.fingerprint)
            self._staging.publish(self._resources.sync, label)
        self._end()
        return report

    def _on_copied(self, count: int) -> None:
        self._check_cancelled()
        self.copied = count

    def cancel(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._cancelled.set()

    def abort(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._cancelled.set()
        self._end()
        self._staging.remove()

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        for run in self._runs.values():
            self._forget(run)
        self._runs.clear()

    def _open_blocks(self, rank: int) -> BlockFile:
        """The place for a layer's blocks: those of the largest need not be copied when the image is put together."""
        if rank:
            return BlockFile(self._staging.open_spool())
        fd = os.dup(self._staging.fd)
        os.ftruncate(fd, 0)
        return BlockFile(fd, data_start(self._format.compressor), is_image=True)

    @staticmethod
    def _forget(run: LayerBlocks) -> None:
        for region in (run.blocks, run.fragments):
            if region.fd >= 0:
                os.close(region.fd)
                region.fd = -1

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Aborted

    def _error(self, error: OSError) -> OutputError:
        return output_error(error, self._staging.destination)


def _ignore(_: int, __: LayerBlocks) -> None:
    pass
