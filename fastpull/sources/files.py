"""Where layouts and archives keep their files: a directory, or the members of a tar."""

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
    """A run of bytes of an open file, which is a file of a layout or of an archive. A context manager.

    Args:
        fd: of the file that holds it.
        start, size: where it lies there, in bytes.
        subject: what it is, for messages.
        owns_fd: the file is closed with it.

    As a `fastpull.sources.base.Blob` it is on this machine already, and stays where it is.
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
        """Reads from ``offset``; nothing at the end.

        Raises:
            MalformedDocument: it cannot be read.
        """
        if self._aborted:
            raise Aborted
        try:
            return os.preadv(self._fd, [buffer[: max(0, self.size - offset)]], self._start + offset)
        except OSError as error:
            raise MalformedDocument(self.subject, f"unreadable bytes ({error.strerror})") from error

    def read(self, max_size: int) -> bytes:
        """The first bytes, at most so many."""
        content = bytearray(min(self.size, max_size))
        at = 0
        while at < len(content) and (size := self.readinto(memoryview(content)[at:], at)):
            at += size
        return bytes(content[:at])

    def document(self) -> bytes:
        """The whole of a small one.

        Raises:
            MalformedDocument: it is larger than documents are.
        """
        content = self.read(MAX_DOCUMENT_SIZE + 1)
        if len(content) > MAX_DOCUMENT_SIZE:
            raise MalformedDocument(self.subject, f"more than {MAX_DOCUMENT_SIZE} bytes")
        return content

    def abort(self) -> None:
        """Ends the reading soon."""
        self._aborted = True

    async def accept(self, fingerprint: str) -> None:
        """Does nothing: it stays where it is."""

    async def reject(self) -> None:
        """Does nothing: it is not ours."""


class SourceFiles(Protocol):
    """The files of a layout or an archive."""

    @property
    def name(self) -> str:
        """Of the whole, for messages."""

    def open(self, path: str) -> FileExtent:
        """Opens a regular file.

        Raises:
            NotFound: it is not there.
            MalformedDocument: it is something else.
        """


class DirectoryFiles:
    """The files of a directory. It is not trusted: nothing is read through a symbolic link in it.

    Args:
        root: its path.

    Raises:
        NotFound: there is no such directory.
    """

    def __init__(self, root: str) -> None:
        if not os.path.isdir(root):
            raise NotFound("OCI layout", root, "There is no such directory")
        self._root = root

    @property
    def name(self) -> str:
        """Of the directory."""
        return self._root

    def open(self, path: str) -> FileExtent:
        """Opens a regular file, component by component, following no link below the root."""
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
                raise MalformedDocument(shown, f"no readable file ({error.strerror})") from error
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            os.close(fd)
            raise MalformedDocument(shown, "no regular file")
        return FileExtent(fd, 0, state.st_size, shown, owns_fd=True)
