"""The file writer in plain Python."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING

from fastpull.native.codes import Placement, SpanFlag

if TYPE_CHECKING:
    from fastpull.native.pure.entry_table import EntryTable, Spans

_MAX_DEPTH = 64
_TAKEN = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class FileWriter:
    """Writes the payload spans of one layer to files; see ``native/files.pxi`` for the contract."""

    def __init__(
        self,
        entries: EntryTable,
        root_fd: int,
        spool_fd: int,
        layer: int,
        keep_owner: bool,
        mode_and: int,
        mode_or: int,
        wanted: bytearray | None = None,
    ) -> None:
        self.failed = 0
        self._entries = entries
        self._root_fd = root_fd
        self._spool_fd = spool_fd
        self._layer = layer
        self._keep_owner = keep_owner
        self._mode_and = mode_and
        self._mode_or = mode_or
        self._wanted = wanted or b""
        self._places = bytearray()
        self._fd = -1

    def write(self, chunk: bytes | bytearray | memoryview, spans: Spans) -> int:
        """Write the spans of a chunk; return 0 or an errno."""
        data = memoryview(chunk)
        for entry, chunk_offset, length, offset, flags in spans:
            if self._wanted[entry : entry + 1] == b"\0":
                continue
            try:
                if flags & SpanFlag.FIRST:
                    self._begin(entry)
                done = 0
                while done < length:
                    piece = data[chunk_offset + done : chunk_offset + length]
                    done += os.pwrite(self._fd, piece, offset + done)
                if flags & SpanFlag.LAST:
                    self._end(entry)
            except OSError as error:
                self.failed = entry
                return error.errno or errno.EIO
        return 0

    def close(self) -> None:
        """Close what is open; may be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def places(self) -> bytes:
        """For each entry a byte: 0 not written, 1 written at its path, 2 in the spool; shorter than the table."""
        return bytes(self._places)

    def _begin(self, entry: int) -> None:
        place = Placement.PATH
        try:
            self._fd = self._open_at_path(self._entries.path(entry))
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
            place = Placement.SPOOL
            self._fd = os.open(f"{self._layer}.{entry}", _NEW, 0o600, dir_fd=self._spool_fd)
        self._places += bytes(entry - len(self._places)) + bytes([place])

    def _open_at_path(self, path: bytes) -> int:
        *parents, name = path.split(b"/")
        if not name or len(parents) > _MAX_DEPTH:
            raise OSError(errno.ELOOP, "in no directory that is held open")
        folder = os.dup(self._root_fd)
        try:
            for parent in parents:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(parent, 0o700, dir_fd=folder)
                below = os.open(parent, _DIRECTORY_FLAGS, dir_fd=folder)
                os.close(folder)
                folder = below
            return os.open(name, _NEW, 0o600, dir_fd=folder)
        finally:
            os.close(folder)

    def _end(self, number: int) -> None:
        entry, fd = self._entries.rows[number], self._fd
        try:
            os.ftruncate(fd, entry.size)
            if self._keep_owner:
                os.fchown(fd, entry.uid, entry.gid)
            os.fchmod(fd, entry.mode & self._mode_and | self._mode_or)
            os.utime(fd, (entry.mtime, entry.mtime))
        finally:
            self.close()
