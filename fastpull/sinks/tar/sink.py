"""The tar sink: the merged image as one pax archive, plain or compressed.

While a layer is scanned, its payload is written to a spool, an unnamed file for each layer. `commit` walks the tree and
writes headers and payload sequentially. The archive depends on the image alone.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fastpull.concurrency.threads import Aborted
from fastpull.errors import InvalidSetting
from fastpull.layers.archive import END, header_of, padding_of
from fastpull.layers.entry import Entry, EntryType
from fastpull.layers.tree import DirectoryNode, Node, Origin, Tree, entry_of, layer_of
from fastpull.layers.xattrs import is_kept
from fastpull.native import PayloadWriter
from fastpull.sinks.base import Resources, SinkReport
from fastpull.sinks.output.destination import free_space
from fastpull.sinks.output.errors import native_output_error, output_errors
from fastpull.sinks.output.file_staging import FileStaging
from fastpull.sinks.output.marker import Label
from fastpull.sinks.tar.packed import PackedStream, packer_of
from fastpull.sinks.tar.stdout import StandardOutput
from fastpull.sinks.tar.stream import Stream
from fastpull.telemetry.trace import Stage

if TYPE_CHECKING:
    from fastpull.native import EntryTable, Spans
    from fastpull.sinks.output.marker import Marker, OutputIdentity


class Tar:
    """The root filesystem as a tar archive.

    Owners, modes, devices and times are those of the image, for every user. Further names of an inode are hard links to
    its first name. Entries are sorted by path, each directory before its content.

    Args:
        path: path of the file; ``-`` is standard output, which is written after everything is verified.
        force: whether an existing file is replaced.
        mtime: modification time of all entries, in seconds since the epoch; None for the times of the image.
        compression: ``gzip[:1-9]`` or ``zstd[:1-22]``, with default levels 6 and 3; None for a plain tar.

    Raises:
        InvalidSetting: from the constructor, if the path is not that of a file, or standard output is a terminal.
        OutputExists: from `begin`, if the path exists and must not be replaced.
        OutputError: from any method, if the output cannot be written.

    Spec: POSIX.1-2017 pax, ustar Interchange Format and pax Extended Header; extended attributes as in star(5).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        force: bool = False,
        mtime: int | None = None,
        compression: str | None = None,
    ) -> None:
        self.path = os.fspath(path)
        if compression is not None:
            packer_of(compression)
        if self.path.endswith("/"):
            raise InvalidSetting(self.path, "a tar is a file, its name cannot end in '/'")
        self._staging = StandardOutput() if self.path == "-" else FileStaging(path, force)
        self._mtime = mtime
        self._compression = compression
        self._identity: OutputIdentity | None = None
        self._layers: dict[int, _LayerPayload] = {}
        self._cancelled = threading.Event()
        self._resources = Resources()

    def __repr__(self) -> str:
        return f"<Tar {self.path!r}>"

    def recipe_facts(self) -> dict[str, Any]:
        """See `fastpull.sinks.capabilities.MarkedSink`."""
        return {"format": "tar", "mtime": self._mtime, "compression": self._compression}

    def read_marker(self) -> Marker | None:
        """See `fastpull.sinks.capabilities.MarkedSink`."""
        return self._staging.read_marker()

    def set_identity(self, identity: OutputIdentity) -> None:
        """See `fastpull.sinks.capabilities.MarkedSink`."""
        self._identity = identity

    def begin(self, resources: Resources) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._resources = resources
        self._cancelled.clear()
        self._staging.create(resources.keep_out)

    def room(self) -> int:
        """See `fastpull.sinks.base.Sink`."""
        return free_space(self._staging.spool_directory)

    def layer(self, number: int, _rank: int, entries: EntryTable, wanted: bytearray | None, /) -> _LayerPayload:
        """See `fastpull.sinks.base.Sink`."""
        if number in self._layers:
            self._layers.pop(number).discard()
        payload = _LayerPayload(self._staging.open_spool(), self._staging.spool_directory, entries, wanted)
        self._layers[number] = payload
        return payload

    def commit(self, tree: Tree, _created: int = 0, /) -> SinkReport:
        """See `fastpull.sinks.base.Sink`."""
        report = SinkReport(self.path)
        part = self._resources.meter.image
        with output_errors(self._staging.destination), part.timed(Stage.COMMIT):
            fingerprint = self._write(tree, report)
        self._discard_layers()
        with part.timed(Stage.PUBLISH):
            self._staging.publish(self._resources.sync, Label.of(self._identity, report.inodes, fingerprint))
        return report

    def _write(self, tree: Tree, report: SinkReport) -> str:
        """Write the archive; return its fingerprint, or an empty text if that would need another read."""
        is_plain = self._compression is None
        stream = Stream(self._staging.fd, self._check_cancelled, skip_holes=is_plain and self._staging.is_file)
        if self._compression is None:
            _Archive(stream, tree, self._layers, self._mtime, report).write()
            return ""
        pool = ThreadPoolExecutor(self._resources.workers, "fastpull-compress")
        try:
            packed = PackedStream(stream, packer_of(self._compression), pool, self._resources.memory)
            _Archive(packed, tree, self._layers, self._mtime, report).write()
        finally:
            pool.shutdown(cancel_futures=True)
        return packed.fingerprint

    def cancel(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._cancelled.set()

    def abort(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._discard_layers()
        self._staging.remove()

    def _discard_layers(self) -> None:
        while self._layers:
            self._layers.popitem()[1].discard()

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Aborted


class _LayerPayload:
    """Writes the payload of one layer to its spool."""

    def __init__(self, spool_fd: int, spool_directory: bytes, entries: EntryTable, wanted: bytearray | None) -> None:
        self.spool_fd = spool_fd
        self._spool_directory = spool_directory
        self._writer = PayloadWriter(entries, spool_fd, wanted)

    def write(self, chunk: bytes, spans: Spans) -> None:
        code = self._writer.write(chunk, spans)
        if code:
            raise native_output_error(code, self._spool_directory)

    def finish(self) -> None:
        """Do nothing: `write` buffers nothing."""

    def close(self) -> None:
        """Keep the spool for the commit."""

    def discard(self) -> None:
        os.close(self.spool_fd)

    def holes(self) -> memoryview:
        """Return the begin and end of each hole in the spool."""
        return memoryview(self._writer.holes_bytes()).cast("q")

    def starts(self) -> memoryview:
        """Return the offset of each entry's payload in the spool, or -1; entries at the end may be missing."""
        return memoryview(self._writer.starts_bytes()).cast("q")


class _Archive:
    """Writes the archive of a tree."""

    def __init__(
        self,
        stream: Stream | PackedStream,
        tree: Tree,
        layers: dict[int, _LayerPayload],
        mtime: int | None,
        report: SinkReport,
    ) -> None:
        self._stream = stream
        self._tree = tree
        self._spools = {number: (layer.spool_fd, layer.starts(), layer.holes()) for number, layer in layers.items()}
        self._mtime = mtime
        self._report = report

    def write(self) -> None:
        first_names: dict[Origin, bytes | None] = dict.fromkeys(self._find_linked())
        for path, node in self._tree.walk():
            if isinstance(node, DirectoryNode):
                self._report.inodes += 1
                if path or node.origin is not None:
                    self._stream.write(header_of(self._entry(path, node)))
                continue
            first = first_names.get(node)
            if first is not None:
                self._stream.write(header_of(self._link(path, node, first)))
                continue
            if node in first_names:
                first_names[node] = path
            self._report.inodes += 1
            entry = self._entry(path, node)
            self._stream.write(header_of(entry))
            if entry.size:
                self._write_payload(node, entry.size)
        self._stream.write(END)
        self._stream.flush()

    def _find_linked(self) -> set[Origin]:
        """Return the inodes with several names."""
        linked: set[Origin] = set()
        if any(EntryType.HARDLINK in index.columns.types for index in self._tree.indexes):
            seen = [bytearray(len(index)) for index in self._tree.indexes]
            for _, node in self._tree.walk():
                if not isinstance(node, DirectoryNode):
                    layer, number = layer_of(node), entry_of(node)
                    if seen[layer][number]:
                        linked.add(node)
                    seen[layer][number] = 1
        return linked

    def _entry(self, path: bytes, node: Node) -> Entry:
        entry = self._tree.entry(node)
        mtime = entry.mtime if self._mtime is None else self._mtime
        xattrs = entry.xattrs
        if xattrs:
            xattrs = tuple(xattr for xattr in xattrs if is_kept(*xattr, entry.type))
            if dropped := len(entry.xattrs) - len(xattrs):
                self._report.left_out["xattrs"] += dropped
        return Entry(
            path, entry.type, entry.mode, entry.uid, entry.gid, mtime, entry.size, entry.linkname, entry.device, xattrs
        )

    def _link(self, path: bytes, node: Origin, first: bytes) -> Entry:
        """Return the hard link for another name of an inode, with the attributes of the inode."""
        entry = self._tree.entry(node)
        mtime = entry.mtime if self._mtime is None else self._mtime
        return Entry(path, EntryType.HARDLINK, entry.mode, entry.uid, entry.gid, mtime, linkname=first)

    def _write_payload(self, origin: Origin, size: int) -> None:
        layer, number = layer_of(origin), entry_of(origin)
        spool_fd, starts, holes = self._spools[layer]
        start = starts[number] if number < len(starts) else -1
        if start < 0:
            raise AssertionError(f"the payload of entry {number} of layer {layer} was not written")
        self._stream.copy(spool_fd, start, size, holes)
        self._stream.write(padding_of(size))
