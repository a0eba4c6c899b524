"""The directory sink: a root filesystem as a directory.

While a layer is scanned, the payload of each file is written to the path of its entry, or to the spool if that path is
taken. `commit` makes the staged directory equal to the merged tree: it moves misplaced files, removes dead ones,
creates links, devices and directories, and sets the attributes of directories last, from the leaves to the root.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from typing import TYPE_CHECKING, Any

from fastpull.concurrency.threads import Aborted
from fastpull.errors import InvalidSetting
from fastpull.layers.entry import Entry, EntryType
from fastpull.layers.tree import DirectoryNode as TreeDirectory
from fastpull.layers.tree import Origin, Tree, entry_of, layer_of
from fastpull.native import FileWriter, remove_tree
from fastpull.sinks.base import Resources, SinkReport
from fastpull.sinks.directory.attributes import AttributeWriter
from fastpull.sinks.directory.flusher import Flusher
from fastpull.sinks.directory.ownership import SPECIAL_BITS, OwnerName, Ownership
from fastpull.sinks.output.destination import free_space
from fastpull.sinks.output.directory_staging import DirectoryStaging
from fastpull.sinks.output.errors import native_output_error, output_errors, raise_errno
from fastpull.sinks.output.marker import Label, write_marker
from fastpull.sinks.output.paths import DIRECTORY_FLAGS, move_file, opened, remove_file, spool_name
from fastpull.sinks.output.replace import ReplaceRules
from fastpull.sinks.tar.stream import copied_file
from fastpull.telemetry.trace import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastpull.native import EntryTable, Spans
    from fastpull.sinks.output.marker import Marker, OutputIdentity

_NONE, _AT_PATH, _IN_SPOOL, _SETTLED = range(4)  # the native file writer uses the first three


class Directory:
    """A root filesystem as a directory.

    Args:
        path: path of the directory; an empty directory is always replaced.
        force: whether a directory is replaced that fastpull made or that holds a root filesystem.
        replace_foreign: with ``force``, whether any directory is replaced that is not protected, see
            `fastpull.sinks.output.protected`.
        owner: ``keep`` or ``me``, see `Ownership`; by default ``keep`` for root and ``me`` for other users.

    Raises:
        InvalidSetting: from the constructor, if the owner is unknown or needs root.
        OutputExists: from `begin` or `commit`, if the path exists and must not be replaced.
        OutputError: from any method, if the output cannot be written.

    Spec: image-spec layer.md, Applying Changesets.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        force: bool = False,
        replace_foreign: bool = False,
        owner: OwnerName | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.rules = ReplaceRules(force, replace_foreign)
        self.owner = owner
        self._ownership = Ownership.named(owner or ("keep" if os.geteuid() == 0 else "me"))
        if self._ownership.keep and os.geteuid() != 0:
            raise InvalidSetting("keep", "only root can keep the owners of files; with 'me' all files belong to you")
        self._staging = DirectoryStaging(path, self.rules)
        self._identity: OutputIdentity | None = None
        self._writers: dict[int, _LayerFiles] = {}
        self._cancelled = threading.Event()
        self._resources = Resources()
        self._flusher: Flusher | None = None

    def __repr__(self) -> str:
        return f"<Directory {self.path!r}>"

    def at(self, path: str | os.PathLike[str], *, owner: OwnerName | None = None) -> Directory:
        """Return the same sink with another path, and optionally with another owner."""
        force, foreign = self.rules.force, self.rules.foreign
        return Directory(path, force=force, replace_foreign=foreign, owner=owner or self.owner)

    def recipe_facts(self) -> dict[str, Any]:
        """See `fastpull.sinks.capabilities.MarkedSink`."""
        if self._ownership.keep:
            return {"format": "directory", "owner": "keep"}
        return {"format": "directory", "owner": "me", "uid": os.geteuid(), "gid": os.getegid()}

    def read_marker(self) -> Marker | None:
        """See `fastpull.sinks.capabilities.MarkedSink`."""
        return self._staging.read_marker()

    def set_identity(self, identity: OutputIdentity) -> None:
        """See `fastpull.sinks.capabilities.MarkedSink`."""
        self._identity = identity

    def begin(self, resources: Resources) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._resources = resources
        self._writers.clear()
        self._cancelled.clear()
        self._staging.create(resources.keep_out)
        if resources.sync:
            with output_errors(self._staging.destination):
                self._flusher = Flusher(self._staging.root_fd)

    def room(self) -> int:
        """See `fastpull.sinks.base.Sink`."""
        return free_space(self._staging.root_fd)

    def layer(self, number: int, _rank: int, entries: EntryTable, wanted: bytearray | None, /) -> _LayerFiles:
        """See `fastpull.sinks.base.Sink`."""
        if number in self._writers:
            self._writers[number].discard()
        self._writers[number] = _LayerFiles(self._staging, self._ownership, number, entries, wanted)
        return self._writers[number]

    def commit(self, tree: Tree, _created: int = 0, /) -> SinkReport:
        """See `fastpull.sinks.base.Sink`."""
        report = SinkReport(self.path)
        part = self._resources.meter.image
        with output_errors(self._staging.destination), part.timed(Stage.COMMIT):
            commit = _Commit(self._staging, self._ownership, self._writers, tree, report, self._cancelled)
            commit.run(self._write_marker)
        self._end_flusher()
        with part.timed(Stage.PUBLISH):
            report.warnings += self._staging.publish(self._resources.sync)
        return report

    def _write_marker(self, inodes: int) -> None:
        write_marker(self._staging.root_fd, Label.of(self._identity, inodes), synced=self._resources.sync)

    def cancel(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._cancelled.set()

    def abort(self) -> None:
        """See `fastpull.sinks.base.Sink`."""
        self._end_flusher()
        for writer in self._writers.values():
            writer.close()
        self._staging.remove()

    def _end_flusher(self) -> None:
        if self._flusher is not None:
            self._flusher.end()
            self._flusher = None


class _LayerFiles:
    """Writes the files of one layer."""

    def __init__(
        self,
        staging: DirectoryStaging,
        ownership: Ownership,
        number: int,
        entries: EntryTable,
        wanted: bytearray | None,
    ) -> None:
        self._staging = staging
        self._number = number
        self._entries = entries
        self._writer = FileWriter(
            entries,
            staging.root_fd,
            staging.spool_fd,
            number,
            ownership.keep,
            ownership.file_mode_and,
            ownership.file_mode_or,
            wanted,
        )

    def write(self, chunk: bytes, spans: Spans) -> None:
        code = self._writer.write(chunk, spans)
        if code:
            path = os.path.join(self._staging.destination, self._entries.path(self._writer.failed))
            raise native_output_error(code, path)

    def finish(self) -> None:
        """Do nothing: `write` buffers nothing."""

    def close(self) -> None:
        self._writer.close()

    def discard(self) -> None:
        """Remove everything that was written: the layer will be read again."""
        self.close()
        for entry, place in enumerate(self.places()):
            if place == _AT_PATH:
                remove_file(self._staging.root_fd, self._entries.path(entry))
            elif place == _IN_SPOOL:
                os.unlink(spool_name(self._number, entry), dir_fd=self._staging.spool_fd)

    def places(self) -> bytearray:
        """Return the location of each entry's payload; entries at the end may be missing."""
        return bytearray(self._writer.places())


class _Commit:
    """Makes the staged directory equal to the tree."""

    def __init__(
        self,
        staging: DirectoryStaging,
        ownership: Ownership,
        writers: dict[int, _LayerFiles],
        tree: Tree,
        report: SinkReport,
        cancelled: threading.Event,
    ) -> None:
        self._root_fd = staging.root_fd
        self._spool_fd = staging.spool_fd
        self._ownership = ownership
        self._tree = tree
        self._report = report
        self._cancelled = cancelled
        self._wanted = [bytearray(len(index)) for index in tree.indexes]
        self._linked: dict[
            Origin, bool | None
        ] = {}  # for inodes with several names, whether they were created; None: not yet
        self._names_left: dict[Origin, int] = {}  # for the same inodes
        self._copies = 0
        self._attributes = AttributeWriter(staging.destination, report, privileged=ownership.keep)
        self._places = {}
        for number, writer in writers.items():
            writer.close()
            places = writer.places()
            self._places[number] = places + bytes(len(tree.indexes[number]) - len(places))

    def run(self, write_marker: Callable[[int], None]) -> None:
        self._settle()
        self._evacuate()
        write_marker(self._report.inodes)  # the root may become read-only at the end
        self._build(self._root_fd, self._tree.root)
        if self._copies:
            self._report.warnings.append(
                f"{self._copies} copies replace hard links: this filesystem allows no more links to one file"
            )

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Aborted

    # --- payload that is already at its path

    def _settle(self) -> None:
        """Mark payload that is at its path in the tree, and find the inodes with several names."""
        for path, node in self._tree.walk():
            if isinstance(node, TreeDirectory):
                self._report.inodes += 1
                continue
            layer, number = split(node)
            if self._wanted[layer][number]:
                self._linked[node] = None
                self._names_left[node] = self._names_left.get(node, 1) + 1
                continue
            self._wanted[layer][number] = 1
            self._report.inodes += 1
            index, places = self._tree.indexes[layer], self._places[layer]
            if places[number] == _AT_PATH and index.path(number) == path:
                places[number] = _SETTLED
            if not self._ownership.keep and index.modes[number] & SPECIAL_BITS:
                self._report.left_out["setuid bits"] += 1
        for node in self._linked:  # all their names become links to one file in the spool
            layer, number = split(node)
            if self._places[layer][number] == _SETTLED:
                self._places[layer][number] = _AT_PATH

    def _evacuate(self) -> None:
        """Move or remove payload at paths where the tree has something else."""
        for layer, places in self._places.items():
            index, number = self._tree.indexes[layer], places.find(_AT_PATH)
            while number >= 0:
                self._check_cancelled()
                if self._wanted[layer][number]:
                    move_file(self._root_fd, index.path(number), self._spool_fd, spool_name(layer, number))
                    places[number] = _IN_SPOOL
                else:
                    remove_file(self._root_fd, index.path(number))
                    places[number] = _NONE
                number = places.find(_AT_PATH, number + 1)

    # --- the tree

    def _build(self, fd: int, directory: TreeDirectory) -> None:
        """Make an open directory, and everything below it, equal to the tree."""
        with os.scandir(fd) as listing:
            present = {os.fsencode(found.name): found.is_dir(follow_symlinks=False) for found in listing}
        for name, is_directory in present.items():
            child = directory.children.get(name)
            if child is None or is_directory != isinstance(child, TreeDirectory):
                raise_errno(remove_tree(fd, name), name)
        for name, child in sorted(directory.children.items()):
            self._check_cancelled()
            if isinstance(child, TreeDirectory):
                if not present.get(name):
                    os.mkdir(name, 0o700, dir_fd=fd)
                inner = os.open(name, DIRECTORY_FLAGS, dir_fd=fd)
                try:
                    self._build(inner, child)
                finally:
                    os.close(inner)
            elif child in self._linked:
                self._link(fd, name, child)
            else:
                self._place(fd, name, child)
        self._finish_directory(fd, directory)

    def _link(self, fd: int, name: bytes, origin: Origin) -> None:
        """Create one name of an inode that has several."""
        kept = spool_name(*split(origin))
        if self._linked[origin] is None:
            self._linked[origin] = self._place(self._spool_fd, kept, origin)
        self._names_left[origin] -= 1
        if not self._linked[origin]:
            return
        if not self._names_left[
            origin
        ]:  # rename the last one, since the name in the spool counts towards the limit of links
            os.rename(kept, name, src_dir_fd=self._spool_fd, dst_dir_fd=fd)
            return
        try:
            os.link(kept, name, src_dir_fd=self._spool_fd, dst_dir_fd=fd, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            self._renew(kept, origin)
            os.link(kept, name, src_dir_fd=self._spool_fd, dst_dir_fd=fd, follow_symlinks=False)

    def _renew(self, kept: bytes, origin: Origin) -> None:
        """Replace an inode in the spool that has reached the limit of links by a copy."""
        layer, number = split(origin)
        entry = self._tree.indexes[layer][number]
        self._copies += 1
        if entry.type is not EntryType.FILE:
            os.unlink(kept, dir_fd=self._spool_fd)
            self._make(self._spool_fd, kept, entry)
            return
        new = kept + b".copy"
        with copied_file(self._spool_fd, kept, new, self._check_cancelled) as copy:
            if self._ownership.keep:
                os.fchown(copy, entry.uid, entry.gid)
            os.fchmod(copy, mode := self._ownership.file_mode(entry.mode))
        self._attributes.write_file(self._spool_fd, new, entry, mode)
        os.utime(new, (entry.mtime, entry.mtime), dir_fd=self._spool_fd)
        os.rename(new, kept, src_dir_fd=self._spool_fd, dst_dir_fd=self._spool_fd)

    def _place(self, fd: int, name: bytes, origin: Origin) -> bool:
        """Create anything that is not a directory; return False if the ownership policy leaves it out."""
        layer, number = split(origin)
        index = self._tree.indexes[layer]
        if index.types[number] == EntryType.FILE:
            place = self._places[layer][number]
            if place == _IN_SPOOL and fd != self._spool_fd:
                os.rename(spool_name(layer, number), name, src_dir_fd=self._spool_fd, dst_dir_fd=fd)
            elif place == _NONE:
                raise AssertionError(f"the payload of entry {number} of layer {layer} was not written")
            if number in index.xattrs:
                entry = index[number]
                self._attributes.write_file(fd, name, entry, self._ownership.file_mode(entry.mode))
            return True
        return self._make(fd, name, index[number])

    def _make(self, fd: int, name: bytes, entry: Entry) -> bool:
        """Create a symbolic link, device or fifo with its attributes; return False if it is left out."""
        if entry.type is EntryType.SYMLINK:
            os.symlink(entry.linkname, name, dir_fd=fd)
        elif entry.type is EntryType.FIFO:
            os.mkfifo(name, 0o600, dir_fd=fd)
        elif not self._ownership.keep:
            self._report.left_out["devices"] += 1
            return False
        else:
            kind = stat.S_IFCHR if entry.type is EntryType.CHAR else stat.S_IFBLK
            os.mknod(name, kind | 0o600, os.makedev(*entry.device), dir_fd=fd)
        if self._ownership.keep:
            os.chown(name, entry.uid, entry.gid, dir_fd=fd, follow_symlinks=False)
        if entry.type is not EntryType.SYMLINK:
            with opened(fd, name) as path:
                os.chmod(path, self._ownership.file_mode(entry.mode))
        self._attributes.write_at(fd, name, entry)
        os.utime(name, (entry.mtime, entry.mtime), dir_fd=fd, follow_symlinks=False)
        return True

    def _finish_directory(self, fd: int, directory: TreeDirectory) -> None:
        entry = self._tree.entry(directory)
        if self._ownership.keep:
            os.fchown(fd, entry.uid, entry.gid)
        self._attributes.write(f"/proc/self/fd/{fd}", entry)
        os.fchmod(fd, self._ownership.directory_mode(entry.mode))
        os.utime(fd, (entry.mtime, entry.mtime))


def split(origin: Origin) -> tuple[int, int]:
    """Return the layer and the entry of an origin."""
    return layer_of(origin), entry_of(origin)
