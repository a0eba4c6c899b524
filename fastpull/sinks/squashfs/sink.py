"""The squashfs sink: an image as one squashfs file, without a file of the image ever being made on the host.

While layers stream, each becomes a run. `commit` plans the image, puts the live parts of the runs behind each other,
appends the metadata, writes the superblock last, and gives the file its name.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING

from fastpull.errors import InvalidSetting, OutputError, from_os_error
from fastpull.sinks.base import Resources
from fastpull.sinks.destination import free_space
from fastpull.sinks.filestaging import FileStaging
from fastpull.sinks.squashfs.assembly import Assembly, SquashfsReport, data_start
from fastpull.sinks.squashfs.batches import BATCH, Buffers
from fastpull.sinks.squashfs.compressors import DEFAULT_COMPRESSION, parse_compression
from fastpull.sinks.squashfs.format import MAX_U32, check_block_size
from fastpull.sinks.squashfs.run_writer import RunWriter
from fastpull.sinks.squashfs.runs import BlockFormat, Region, Run
from fastpull.sinks.staging import output_errors
from fastpull.tasks import Aborted
from fastpull.trace import Stage

if TYPE_CHECKING:
    from fastpull.layers.tree import Tree
    from fastpull.tarstage import EntryTable

_MAX_DEPTH = 64
_TIMES = "squashfs holds times from 1970 to 2106, in seconds since the epoch"


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
        block_size: int = 128 << 10,
        fragments: bool = True,
        mtime: int | None = None,
        time: int | None = None,
    ) -> None:
        try:
            check_block_size(block_size)
        except ValueError:
            raise InvalidSetting(str(block_size), "a block size has to be a power of two from 4K to 1M") from None
        if time is None:
            time = _source_date_epoch()
        for seconds in (mtime, time):
            if seconds is not None and not 0 <= seconds <= MAX_U32:
                raise InvalidSetting(str(seconds), _TIMES)
        self.path = os.fspath(path)
        self.force = force
        self._format = BlockFormat(parse_compression(compression), block_size, fragments)
        self._mtime = mtime
        self._time = time
        self._staging = FileStaging(path, force)
        self._resources = Resources()
        self._buffers = Buffers(BATCH + 2 * block_size)
        self._runs: dict[int, Run] = {}
        self._ranks: dict[int, int] = {}
        self._cancelled = threading.Event()
        self._pool: Executor | None = None

    def __repr__(self) -> str:
        return f"<Squashfs {self.path!r} {self._format.compressor.name}>"

    def begin(self, resources: Resources) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._resources = resources
        self._runs.clear()
        self._ranks.clear()
        self._cancelled.clear()
        self._staging.create()
        self._pool = ThreadPoolExecutor(resources.workers, "fastpull-compress")

    def room(self) -> int:
        """See `fastpull.sinks.base.Sink`."""
        return free_space(self._staging.fd)

    def layer(self, number: int, rank: int, entries: EntryTable, wanted: bytearray | None, /) -> RunWriter:
        """See `fastpull.sinks.base.Sink`."""
        assert self._pool is not None, "the sink has begun"
        if number in self._runs:
            self._forget(self._runs[number])
        with output_errors(self._staging.destination):
            run = self._runs[number] = Run(self._open_blocks(rank), Region(self._staging.open_spool()))
        self._ranks[number] = rank
        # a batch is there twice, as it came and compressed
        share = self._resources.memory // self._resources.layers // (2 * (BATCH + self._format.block_size))
        return RunWriter(
            run,
            entries,
            self._format,
            pool=self._pool,
            buffers=self._buffers,
            depth=max(1, min(share, 2 * self._resources.workers, _MAX_DEPTH)),
            wanted=wanted,
            fail=self._error,
            part=self._resources.meter.layer(number),
        )

    def commit(self, tree: Tree, created: int = 0, /) -> SquashfsReport:
        """See `fastpull.sinks.base.Sink`."""
        assert self._pool is not None, "the sink has begun"
        runs = [self._runs[number] for number in range(len(tree.indexes))]
        order = sorted(self._ranks, key=self._ranks.__getitem__)
        with output_errors(self._staging.destination):
            part = self._resources.meter.image
            assembly = Assembly(
                self._staging.fd, self._format, runs, order, tree, self._pool, self._check_cancelled, part
            )
            time = created if self._time is None else self._time
            report = assembly.write(time, self._mtime, SquashfsReport(self.path))
            with part.at(Stage.PUBLISH):
                self._staging.publish(self._resources.sync)
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

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        for run in self._runs.values():
            self._forget(run)
        self._runs.clear()

    def _open_blocks(self, rank: int) -> Region:
        """The place for a layer's blocks: those of the largest need not be copied when the image is put together."""
        if rank:
            return Region(self._staging.open_spool())
        fd = os.dup(self._staging.fd)
        os.ftruncate(fd, 0)
        return Region(fd, data_start(self._format.compressor), is_image=True)

    @staticmethod
    def _forget(run: Run) -> None:
        for region in (run.blocks, run.fragments):
            if region.fd >= 0:
                os.close(region.fd)
                region.fd = -1

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Aborted

    def _error(self, error: OSError) -> OutputError:
        return from_os_error(OutputError, error, self._staging.destination)


def _source_date_epoch() -> int | None:
    """The time that a build asks for, see reproducible-builds.org."""
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        raise InvalidSetting(text, f"SOURCE_DATE_EPOCH: {_TIMES}")
    return int(text)
