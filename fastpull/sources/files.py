"""The files of layouts and archives: in a directory, or as members of a tar."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Protocol, Self

from fastpull.concurrency.threads import Aborted
from fastpull.errors import MalformedDocument, NotFound
from fastpull.oci.json import MAX_DOCUMENT_SIZE

if TYPE_CHECKING:
    from types import TracebackType


class FileExtent:
    """A range of bytes in an open file: a file of a layout or of an archive. A context manager.

    Args:
        fd: descriptor of the containing file.
        start, size: position in that file, in bytes.
        subject: name for messages.
        owns_fd: whether to close the descriptor at the end.

    As a `fastpull.sources.base.Blob` it is present on this machine, and stays in place.
    """

    is_fresh = True
    is_cached = False
    is_remote = False
    is_trusted = False

    def __init__(self, fd: int, start: int, size: int, subject: str, *, owns_fd: bool = False) -> None:
        self.size = size
        self.subject = subject
        self._fd = fd
        self._start = start
        self._owns_fd = owns_fd
        self._aborted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._owns_fd:
            os.close(self._fd)

    @property
    def present(self) -> int:
        """See `fastpull.sources.base.Blob`."""
        return self.size

    def readinto(self, buffer: memoryview, offset: int) -> int:
        """Read bytes at ``offset``; return 0 at the end.

        Raises:
            MalformedDocument: the file cannot be read.
        """
        if self._aborted:
            raise Aborted
        try:
            return os.preadv(self._fd, [buffer[: max(0, self.size - offset)]], self._start + offset)
        except OSError as error:
            raise MalformedDocument(self.subject, f"unreadable bytes ({error.strerror})") from error

    def read(self, max_size: int) -> bytes:
        """Return up to ``max_size`` bytes from the start."""
        content = bytearray(min(self.size, max_size))
        at = 0
        while at < len(content) and (size := self.readinto(memoryview(content)[at:], at)):
            at += size
        return bytes(content[:at])

    def document(self) -> bytes:
        """Return the whole content of a small file.

        Raises:
            MalformedDocument: it is larger than the limit for documents.
        """
        content = self.read(MAX_DOCUMENT_SIZE + 1)
        if len(content) > MAX_DOCUMENT_SIZE:
            raise MalformedDocument(self.subject, f"more than {MAX_DOCUMENT_SIZE} bytes")
        return content

    def abort(self) -> None:
        """End the reading soon."""
        self._aborted = True

    async def accept(self, fingerprint: str) -> None:
        """Do nothing; the bytes stay in place."""

    async def reject(self) -> None:
        """Do nothing; the file belongs to the user."""


class SourceFiles(Protocol):
    """The files of a layout or an archive."""

    @property
    def name(self) -> str:
        """Name of the layout or archive, for messages."""

    def open(self, path: str) -> FileExtent:
        """Open a regular file.

        Raises:
            NotFound: it does not exist.
            MalformedDocument: it is not a regular file.
        """


class DirectoryFiles:
    """The files of a directory, which is not trusted: no symbolic link below it is followed.

    Args:
        root: path of the directory.

    Raises:
        NotFound: there is no such directory.
    """

    def __init__(self, root: str) -> None:
        if not os.path.isdir(root):
            raise NotFound("OCI layout", root, "There is no such directory")
        self._root = root

    @property
    def name(self) -> str:
        """Path of the directory."""
        return self._root

    def open(self, path: str) -> FileExtent:
        """Open a regular file component by component, following no link below the root."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        *directories, last = path.split("/")
        shown = os.path.join(self._root, path)
        with contextlib.ExitStack() as stack:
            try:
                above = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, above)
                for directory in directories:
                    above = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
                    stack.callback(os.close, above)
                fd = os.open(last, flags, dir_fd=above)
            except FileNotFoundError:
                raise NotFound(path, f"layout {self._root}") from None
            except OSError as error:
                raise MalformedDocument(shown, f"not a readable file ({error.strerror})") from error
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            os.close(fd)
            raise MalformedDocument(shown, "not a regular file")
        return FileExtent(fd, 0, state.st_size, shown, owns_fd=True)
