"""The assembly of an image: the live parts of the runs behind each other, then the metadata, the superblock last."""

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
from fastpull.sinks.squashfs.image.plan import NO_TAIL, BlockExtent, Blocks, ImagePlan, Tail, blocks_of, make_plan
from fastpull.sinks.squashfs.tables.lookup import Fragment
from fastpull.telemetry.timing import waiting
from fastpull.telemetry.trace import Stage, Wait

if TYPE_CHECKING:
    from fastpull.layers.tree import Origin, Tree
    from fastpull.sinks.squashfs.blocks.compressors import Compressor
    from fastpull.sinks.squashfs.blocks.layer_blocks import BlockFormat, LayerBlocks
    from fastpull.telemetry.timing import TimingScope

_COPY = 16 << 20  # bytes that are copied between two looks at whether to go on
_HELD_FRAGMENTS = 32
_REPACKED_AHEAD = 16  # blocks that are made before the first of them is written


@dataclass(slots=True)
class SquashfsReport(SinkReport):
    """What the squashfs sink made.

    Attributes:
        size: of the file, in bytes.
        content_size: of all files in it, in bytes; what several names or several inodes share counts once for each
            inode.
        compression: as it can be given again.
        codecs: the libraries that compressed, with their versions: the same ones give the same bytes.
        duplicates, duplicate_bytes: files whose content another one has, and the bytes that need not be stored again.
        hole_bytes: zeros that are not stored.
        clamped_times: inodes whose time the format cannot hold.
        origin: ``built``; or what was made of a finished image in the cache: ``linked``, ``cloned`` or ``copied``.
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
        """What holds for every copy of the file, as JSON has it."""
        facts = asdict(self)
        del facts["path"], facts["origin"]
        return facts

    @classmethod
    def of_finished(cls, path: str, origin: str, facts: Mapping[str, Any]) -> Self:
        """What `facts` told of a file that is at another path now; what is not known any more is left out."""
        known = {field.name for field in fields(cls)}
        report = cls(path, **{name: value for name, value in facts.items() if name in known})
        report.origin = origin
        report.left_out = Counter(report.left_out)
        return report


class ImageWriter:
    """Makes the file of the runs.

    Args:
        fd: of the file; the blocks of the first run may be in it already, where the data begins.
        blocks: how the runs were made.
        runs: of all layers.
        order: of the layers in the image, by their numbers.
        tree: what the image has to be.
        pool: copies and packs.
        check: called often; raises if nobody wants the image any more.
        part: counts where the time goes.

    Raises:
        OutputError: the format cannot hold something.
        OSError: the filesystem refuses.
    """

    def __init__(
        self,
        fd: int,
        blocks: BlockFormat,
        runs: Sequence[LayerBlocks],
        order: Sequence[int],
        tree: Tree,
        pool: Executor,
        check: Callable[[], None],
        part: TimingScope,
    ) -> None:
        self._fd = fd
        self._format = blocks
        self._runs = runs
        self._order = order
        self._tree = tree
        self._pool = pool
        self._check = check
        self._part = part
        # tails that are equal stand together, as the directories that were copied did
        self._held_fragment = lru_cache(_HELD_FRAGMENTS)(self._read_fragment)

    def write(self, time: int, mtime: int | None, report: SquashfsReport) -> SquashfsReport:
        """Writes the whole file, and fills the report.

        The plan says where everything goes. So the data is copied on a thread of the pool, while this one makes the
        metadata. Only what is in the file already is brought together first: it may be in the way.
        """
        compressor, form = self._format.compressor, self._format
        with self._part.at(Stage.PLAN):
            plan = make_plan(self._tree, self._runs, self._order, form.block_size, self)
        start = data_start(compressor)
        with self._part.at(Stage.GATHER):
            at = self._gather(plan, start)
        copying = self._pool.submit(self._copy_data, plan, at)
        fragments, at = self._place_fragments(plan, start + plan.data_size)
        at = self._repack(plan, fragments, at)
        layouts = _Layouts(self._tree, self._runs, plan, form.block_size, start)
        with self._part.at(Stage.METADATA):
            metadata = make_image_metadata(
                self._tree,
                layouts.of,
                fragments,
                block_size=form.block_size,
                compressor=compressor,
                data_end=at,
                time=time,
                mtime=mtime,
                flags=DEDUPLICATED if form.fragments else DEDUPLICATED | NO_FRAGMENTS,
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
        with self._part.lane(Stage.METADATA) as lane, waiting(lane, Wait.COPY):
            wait(futures)

    def _place_fragments(self, plan: ImagePlan, at: int) -> tuple[list[Fragment], int]:
        """Where the fragment blocks that stay will be, and where they end."""
        found = []
        for layer, number in plan.fragments:
            fragments = self._runs[layer].fragments
            found.append(Fragment(at, fragments.words[number]))
            first, end = fragments.extent(number)
            at += end - first
        return found, at

    def _gather(self, plan: ImagePlan, at: int) -> int:
        """Closes the gaps that dead blocks leave in the file, and cuts off what follows; returns where that is."""
        for extent in plan.blocks:
            if self._runs[extent.layer].blocks.is_image:
                at = self._copy(self._fd, extent, at)
        os.ftruncate(self._fd, at)
        return at

    def _copy_data(self, plan: ImagePlan, at: int) -> None:
        """Copies what is taken over of the other files, one part behind the other."""
        with self._part.at(Stage.COPY):
            for extent in plan.blocks:
                blocks = self._runs[extent.layer].blocks
                if not blocks.is_image:
                    at = self._copy(blocks.fd, extent, at)
            for extent in plan.kept:
                at = self._copy(self._runs[extent.layer].fragments.fd, extent, at)

    def _copy(self, fd: int, extent: BlockExtent, at: int) -> int:
        """Copies a part of a file, and returns where it ends.

        Another file gives back at once what it took for the part: the next can have its pages, and a disk does not have
        to write it.
        """
        start, stop = extent.start, extent.stop
        if fd == self._fd and start == at:
            return stop
        while start < stop:
            self._check()
            copied = copy_range(fd, start, self._fd, at, min(_COPY, stop - start))
            start_writeback(self._fd, at, copied)
            if fd != self._fd:
                give_back(fd, start, copied)
            start += copied
            at += copied
        return at

    # --- fragment blocks that are packed anew

    def _repack(self, plan: ImagePlan, fragments: list[Fragment], at: int) -> int:
        """Makes new fragment blocks of tails that are in others, a few at a time; returns where they end."""
        pending: deque[Future[tuple[int, bytes]]] = deque()
        for tails in chain(plan.repacked, repeat(None, _REPACKED_AHEAD)):
            if tails is not None:
                pending.append(self._pool.submit(self._packed, tails))
            if pending and (tails is None or len(pending) >= _REPACKED_AHEAD):
                self._wait([pending[0]])
                word, packed = pending.popleft().result()
                fragments.append(Fragment(at, word))
                at = pwrite_all(self._fd, at, [packed])
        return at

    def _packed(self, tails: Sequence[Tail]) -> tuple[int, bytes]:
        """One such block, on a thread of the pool."""
        block, held, fragment = bytearray(), (-1, -1), b""
        with self._part.at(Stage.COPY):
            for tail in tails:
                run, slot = self._runs[layer_of(tail)], entry_of(tail)
                place = (layer_of(tail), run.slot_fragments[slot])
                if place != held:
                    held, fragment = place, self._read_fragment(*place)
                block += run.tail(slot, fragment)
            compress = self._format.compressor.compress_metadata
            words, pieces = compress_blocks(compress, block, array("I", [len(block)]))
            return words[0], bytes(pieces[0])

    def _read_fragment(self, layer: int, number: int) -> bytes:
        fragments, form = self._runs[layer].fragments, self._format
        return fragments.read(number, form.compressor.decompress_metadata, form.block_size)

    # --- what the plan asks

    def same_tails(self, one: Tail, other: Tail) -> bool:
        """See `fastpull.sinks.squashfs.image.plan.Content`."""
        self._check()
        return self._tail(one) == self._tail(other)

    def _tail(self, tail: Tail) -> memoryview:
        run, slot = self._runs[layer_of(tail)], entry_of(tail)
        return run.tail(slot, self._held_fragment(layer_of(tail), run.slot_fragments[slot]))

    def same_blocks(self, files: Sequence[tuple[Origin, Blocks]]) -> Iterator[list[Origin]]:
        """See `fastpull.sinks.squashfs.image.plan.Content`."""
        groups: dict[bytes, list[Origin]] = {}
        for origin, blocks in files:
            self._check()
            groups.setdefault(self._hash(layer_of(origin), blocks), []).append(origin)
        return (group for group in groups.values() if len(group) > 1)

    def _hash(self, layer: int, blocks: Blocks) -> bytes:
        """sha256 of compressed blocks, which are equal if and only if what they hold is."""
        at, stop = self._runs[layer].blocks.extent(blocks.first, blocks.total)
        hasher = hashlib.sha256()
        while at < stop:
            content = os.pread(self._runs[layer].blocks.fd, min(1 << 20, stop - at), at)
            hasher.update(content)
            at += len(content)
        return hasher.digest()


class _Layouts:
    """Where the content of each file is."""

    def __init__(
        self, tree: Tree, runs: Sequence[LayerBlocks], plan: ImagePlan, block_size: int, data_start: int
    ) -> None:
        self._tree = tree
        self._runs = runs
        self._plan = plan
        self._block_size = block_size
        self._data_start = data_start
        self.content_size = 0
        self.hole_bytes = 0

    def of(self, origin: Origin) -> FileLayout:
        """Of one file; to be asked once for each."""
        layer, size = layer_of(origin), self._tree.indexes[layer_of(origin)].sizes[entry_of(origin)]
        self.content_size += size
        tail = self._plan.tail(origin)
        fragment, offset = (NO_FRAGMENT, 0) if tail == NO_TAIL else self._plan.place(tail)
        start = self._plan.starts.get(origin)
        if start is None:
            return FileLayout(0, b"", fragment, offset)
        blocks = blocks_of(self._tree, self._runs, origin, self._block_size)
        words = self._runs[layer].blocks.words[blocks.first : blocks.first + blocks.total]
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
    """Where in an image the data begins."""
    return SUPERBLOCK_SIZE + len(compressor.options())


def copy_range(source: int, start: int, target: int, at: int, size: int) -> int:
    """Copies bytes to another file, sharing them where the filesystem can, or towards the front of the same.

    Returns:
        How many.
    """
    copied = 0
    if source != target:  # the two ranges may overlap, which no system call copes with
        with contextlib.suppress(OSError):  # another filesystem, or one that does not know it
            copied = os.copy_file_range(source, target, size, start, at)
    if not copied:
        content = os.pread(source, size, start)
        if not content:
            raise OSError(errno.EIO, "a spool file is shorter than what was written to it")
        copied = os.pwrite(target, content, at)
    return copied
