"""The writer of an image file: the live blocks of the layers, then the metadata, and the superblock last."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sys
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Self

from fastpull.concurrency.writes import pwrite_all
from fastpull.layers.tree import entry_of, layer_of
from fastpull.native import give_back, start_writeback
from fastpull.sinks.base import SinkReport
from fastpull.sinks.squashfs.blocks.batches import compress_blocks
from fastpull.sinks.squashfs.format.inodes import FileLayout
from fastpull.sinks.squashfs.format.superblock import DEDUPLICATED, NO_FRAGMENT, NO_FRAGMENTS, SUPERBLOCK_SIZE
from fastpull.sinks.squashfs.image.image_metadata import make_image_metadata
from fastpull.sinks.squashfs.image.plan import (
    NO_TAIL,
    BlockExtent,
    FileBlocks,
    ImagePlan,
    TailRef,
    file_blocks,
    make_plan,
    tail_id_of,
)
from fastpull.sinks.squashfs.tables.lookup import Fragment
from fastpull.telemetry.timing import waiting
from fastpull.telemetry.trace import Stage, Wait

if TYPE_CHECKING:
    from fastpull.layers.tree import Origin, Tree
    from fastpull.sinks.squashfs.blocks.compressors import Compressor
    from fastpull.sinks.squashfs.blocks.layer_blocks import BlockFormat, LayerBlocks
    from fastpull.telemetry.timing import TimingScope

_COPY_SIZE = 16 << 20  # bytes to copy between two checks for cancellation
_CACHED_FRAGMENTS = 32
_REPACK_AHEAD = 16  # new fragment blocks to make before the first is written


@dataclass(slots=True)
class SquashfsReport(SinkReport):
    """The result of the squashfs sink.

    Attributes:
        size: the size of the file, in bytes.
        content_size: the size of all files in the image, in bytes. A hard-linked file counts once; files that share
            blocks count each.
        compression: the compressor, as the setting accepts it.
        codecs: the versions of the compression libraries; equal versions produce equal bytes.
        duplicates, duplicate_bytes: the number of files whose content another file has, and the bytes this saves.
        hole_bytes: the number of zero bytes that are not stored.
        clamped_times: the number of inodes whose time the format cannot hold.
        origin: ``built``; or how a finished image came from the cache: ``linked``, ``cloned`` or ``copied``.
    """

    size: int = 0
    content_size: int = 0
    compression: str = ""
    codecs: dict[str, str] = field(default_factory=dict)
    duplicates: int = 0
    duplicate_bytes: int = 0
    hole_bytes: int = 0
    clamped_times: int = 0
    origin: str = "built"

    def facts(self) -> dict[str, Any]:
        """Return the JSON facts that hold for every copy of the file."""
        facts = asdict(self)
        del facts["path"], facts["origin"]
        return facts

    @classmethod
    def of_finished(cls, path: str, origin: str, facts: Mapping[str, Any]) -> Self:
        """Return the report of a finished image at another path. Unknown facts are ignored."""
        known = {field.name for field in fields(cls)}
        report = cls(path, **{name: value for name, value in facts.items() if name in known})
        report.origin = origin
        report.left_out = Counter(report.left_out)
        return report


class ImageWriter:
    """Writes the image file from the blocks of the layers.

    Args:
        fd: the image file; the data blocks of the first layer may be in it already, at the start of the data.
        block_format: the format of the layers' blocks.
        layers: the blocks of all layers.
        order: the numbers of the layers, in their order in the image.
        tree: the content of the image.
        pool: the threads that copy and compress.
        check: called often; raises if the image is no longer wanted.
        timing: the scope that records the time of each stage.

    Raises:
        OutputError: the format cannot hold something in the tree.
        OSError: the file cannot be written.
    """

    def __init__(
        self,
        fd: int,
        block_format: BlockFormat,
        layers: Sequence[LayerBlocks],
        order: Sequence[int],
        tree: Tree,
        pool: Executor,
        check: Callable[[], None],
        timing: TimingScope,
    ) -> None:
        self._fd = fd
        self._format = block_format
        self._layers = layers
        self._order = order
        self._tree = tree
        self._pool = pool
        self._check = check
        self._timing = timing
        # equal tail-ends are often neighbours, as in a copied directory
        self._cached_fragment = lru_cache(_CACHED_FRAGMENTS)(self._read_fragment)

    def write(self, time: int, mtime: int | None, report: SquashfsReport) -> SquashfsReport:
        """Write the whole file, and fill the report.

        The plan determines all offsets. So a thread of the pool copies the data while this thread makes the metadata.
        Only the blocks in the image file itself are moved first, because other data may overwrite them.

        Args:
            time: the time of the image, in seconds since the epoch.
            mtime: the time of all inodes; None for their own.
            report: the report to fill.
        """
        compressor, block_size = self._format.compressor, self._format.block_size
        with self._timing.timed(Stage.PLAN):
            plan = make_plan(self._tree, self._layers, self._order, block_size, self)
        start = data_start(compressor)
        with self._timing.timed(Stage.GATHER):
            at = self._compact(plan, start)
        copying = self._pool.submit(self._copy_data, plan, at)
        fragments, at = self._place_fragments(plan, start + plan.data_size)
        at = self._repack(plan, fragments, at)
        layouts = _FileLayouts(self._tree, self._layers, plan, block_size, start)
        with self._timing.timed(Stage.METADATA):
            metadata = make_image_metadata(
                self._tree,
                layouts.layout,
                fragments,
                block_size=block_size,
                compressor=compressor,
                data_end=at,
                time=time,
                mtime=mtime,
                flags=DEDUPLICATED if self._format.fragments else DEDUPLICATED | NO_FRAGMENTS,
                check=self._check,
            )
            end = pwrite_all(self._fd, at, metadata.pieces)
            pwrite_all(self._fd, SUPERBLOCK_SIZE, [compressor.options()])
        self._wait([copying])
        copying.result()
        pwrite_all(self._fd, 0, [metadata.superblock])
        report.inodes = metadata.inodes
        report.size = end
        report.content_size = layouts.content_size
        report.compression = str(compressor)
        report.codecs = compressor.versions()
        report.duplicates, report.duplicate_bytes = plan.duplicates, plan.duplicate_bytes
        report.hole_bytes = layouts.hole_bytes
        report.clamped_times = metadata.clamped_times
        if metadata.clamped_times:
            report.warnings.append(f"{metadata.clamped_times} times are not between 1970 and 2106, and were clamped")
        if metadata.dropped_xattrs:
            report.left_out["xattrs"] += metadata.dropped_xattrs
        return report

    def _wait(self, futures: Sequence[Future[Any]]) -> None:
        with self._timing.lane(Stage.METADATA) as lane, waiting(lane, Wait.COPY):
            wait(futures)

    def _place_fragments(self, plan: ImagePlan, at: int) -> tuple[list[Fragment], int]:
        """Return the table rows of the fragment blocks that stay unchanged, and the offset behind them."""
        found = []
        for layer, number in plan.kept_fragments:
            fragments = self._layers[layer].fragments
            found.append(Fragment(at, fragments.words[number]))
            start, stop = fragments.extent(number)
            at += stop - start
        return found, at

    def _compact(self, plan: ImagePlan, at: int) -> int:
        """Close the gaps of dead blocks in the image file and truncate it; return its new end."""
        for extent in plan.data_extents:
            if self._layers[extent.layer].data.is_image:
                at = self._copy(self._fd, extent, at)
        os.ftruncate(self._fd, at)
        return at

    def _copy_data(self, plan: ImagePlan, at: int) -> None:
        """Copy the extents of all other files, one after the other."""
        with self._timing.timed(Stage.COPY):
            for extent in plan.data_extents:
                data = self._layers[extent.layer].data
                if not data.is_image:
                    at = self._copy(data.fd, extent, at)
            for extent in plan.fragment_extents:
                at = self._copy(self._layers[extent.layer].fragments.fd, extent, at)

    def _copy(self, fd: int, extent: BlockExtent, at: int) -> int:
        """Copy an extent of a file to an offset of the image, and return its end there.

        A spool file gives its copied pages back at once: the next copy can use them, and the disk need not write them.
        """
        start, stop = extent.start, extent.stop
        if fd == self._fd and start == at:
            return stop
        while start < stop:
            self._check()
            copied = copy_range(fd, start, self._fd, at, min(_COPY_SIZE, stop - start))
            start_writeback(self._fd, at, copied)
            if fd != self._fd:
                give_back(fd, start, copied)
            start += copied
            at += copied
        return at

    # --- repacked fragment blocks

    def _repack(self, plan: ImagePlan, fragments: list[Fragment], at: int) -> int:
        """Make and write the new fragment blocks, a few at a time; return the offset behind them."""
        pending: deque[Future[tuple[int, bytes]]] = deque()
        for tails in chain(plan.repacked, repeat(None, _REPACK_AHEAD)):
            if tails is not None:
                pending.append(self._pool.submit(self._make_fragment, tails))
            if pending and (tails is None or len(pending) >= _REPACK_AHEAD):
                self._wait([pending[0]])
                word, packed = pending.popleft().result()
                fragments.append(Fragment(at, word))
                at = pwrite_all(self._fd, at, [packed])
        return at

    def _make_fragment(self, tails: Sequence[TailRef]) -> tuple[int, bytes]:
        """Make one new fragment block, on a thread of the pool."""
        content, last, fragment = bytearray(), (-1, -1), b""
        with self._timing.timed(Stage.COPY):
            for tail in tails:
                layer, tail_id = layer_of(tail), tail_id_of(tail)
                number = self._layers[layer].tail_fragments[tail_id]
                if (layer, number) != last:
                    last, fragment = (layer, number), self._read_fragment(layer, number)
                content += self._layers[layer].tail(tail_id, fragment)
            compress = self._format.compressor.compress_metadata
            words, pieces = compress_blocks(compress, content, array("I", [len(content)]))
            return words[0], bytes(pieces[0])

    def _read_fragment(self, layer: int, number: int) -> bytes:
        fragments, compressor = self._layers[layer].fragments, self._format.compressor
        return fragments.read(number, compressor.decompress_metadata, self._format.block_size)

    # --- comparisons for the plan

    def same_tails(self, one: TailRef, other: TailRef) -> bool:
        """See `fastpull.sinks.squashfs.image.plan.ContentComparer`."""
        self._check()
        return self._tail(one) == self._tail(other)

    def _tail(self, tail: TailRef) -> memoryview:
        layer, tail_id = layer_of(tail), tail_id_of(tail)
        blocks = self._layers[layer]
        return blocks.tail(tail_id, self._cached_fragment(layer, blocks.tail_fragments[tail_id]))

    def same_blocks(self, files: Sequence[tuple[Origin, FileBlocks]]) -> Iterator[list[Origin]]:
        """See `fastpull.sinks.squashfs.image.plan.ContentComparer`."""
        groups: dict[bytes, list[Origin]] = {}
        for origin, blocks in files:
            self._check()
            groups.setdefault(self._hash(layer_of(origin), blocks), []).append(origin)
        return (group for group in groups.values() if len(group) > 1)

    def _hash(self, layer: int, blocks: FileBlocks) -> bytes:
        """Return the SHA-256 of compressed blocks: equal if and only if the uncompressed blocks are equal."""
        data = self._layers[layer].data
        at, stop = data.extent(blocks.first, blocks.total)
        hasher = hashlib.sha256()
        while at < stop:
            content = os.pread(data.fd, min(1 << 20, stop - at), at)
            hasher.update(content)
            at += len(content)
        return hasher.digest()


class _FileLayouts:
    """The layouts of the files in the image, and totals of the files so far."""

    def __init__(
        self, tree: Tree, layers: Sequence[LayerBlocks], plan: ImagePlan, block_size: int, data_start: int
    ) -> None:
        self._tree = tree
        self._layers = layers
        self._plan = plan
        self._block_size = block_size
        self._data_start = data_start
        self.content_size = 0
        self.hole_bytes = 0

    def layout(self, origin: Origin) -> FileLayout:
        """Return the layout of a file, and add the file to the totals; called once for each file."""
        layer = layer_of(origin)
        size = self._tree.indexes[layer].sizes[entry_of(origin)]
        self.content_size += size
        tail = self._plan.tail(origin)
        fragment, offset = (NO_FRAGMENT, 0) if tail == NO_TAIL else self._plan.fragment(tail)
        start = self._plan.data_starts.get(origin)
        if start is None:
            return FileLayout(0, b"", fragment, offset)
        blocks = file_blocks(self._tree, self._layers, origin, self._block_size)
        words = self._layers[layer].data.words[blocks.first : blocks.first + blocks.total]
        sparse = 0
        if 0 in words:
            sparse = words.count(0) * self._block_size
            if not words[-1] and fragment == NO_FRAGMENT and size % self._block_size:
                sparse -= self._block_size - size % self._block_size
            self.hole_bytes += sparse
        if sys.byteorder == "big":
            words.byteswap()
        return FileLayout(self._data_start + start, words.tobytes(), fragment, offset, sparse)


def data_start(compressor: Compressor) -> int:
    """Return the offset in an image at which the data begins."""
    return SUPERBLOCK_SIZE + len(compressor.options())


def copy_range(source: int, start: int, target: int, at: int, size: int) -> int:
    """Copy bytes to another file, sharing them where the filesystem can, or towards the start of the same file.

    Returns:
        The number of copied bytes, at least 1.

    Raises:
        OSError: the file cannot be read or written.
    """
    copied = 0
    if source != target:  # no system call copies between overlapping ranges of one file
        with contextlib.suppress(OSError):  # another filesystem, or one without support
            copied = os.copy_file_range(source, target, size, start, at)
    if not copied:
        content = os.pread(source, size, start)
        if not content:
            raise OSError(errno.EIO, "a spool file is shorter than what was written to it")
        copied = os.pwrite(target, content, at)
    return copied
