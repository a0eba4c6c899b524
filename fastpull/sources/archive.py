"""Tar archives whose members are read in place, by offset.

One pass reads the headers, skips the content, and indexes the members. A compressed archive is decompressed once, into
a nameless file of the cache.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fastpull.concurrency.threads import check_stopped
from fastpull.config.limits import DEFAULT_LIMITS
from fastpull.errors import DecompressError, LayerError, LimitExceeded, MalformedDocument, NotFound, TarError, printable
from fastpull.layers.entry import EntryType
from fastpull.native.layer_scanner import LayerScanner
from fastpull.oci.digest import Digest
from fastpull.sources.files import FileExtent
from fastpull.sources.spool import Spool, decompressed

if TYPE_CHECKING:
    from fastpull.cache.store import Store
    from fastpull.config.limits import Limits
    from fastpull.layers.index import LayerIndex

MAX_MEMBERS = 100_000
"""Largest number of members of an archive; an image has some hundreds."""

_NO_LIMIT = replace(DEFAULT_LIMITS, max_layer_size=(1 << 63) - 1)  # the bytes of a member are on disk already
_WINDOW = 64 << 10
_NOTHING = bytes(16 << 20)
_HOLES = "a sparse member"


@dataclass(frozen=True, slots=True)
class ArchiveMember:
    """A member of an archive.

    Attributes:
        type: type of the entry.
        start, size: position of its content in the archive file.
        target: target of a link.
        is_repeated: whether another member has the same path.
    """

    type: EntryType
    start: int
    size: int
    target: bytes = b""
    is_repeated: bool = False


class Archive:
    """An open archive.

    Args:
        name: name for messages.
        fd: descriptor of the uncompressed tar, closed by `close`.
        is_stopped: polled now and then; a true result aborts.

    Attributes:
        memo: derived data that sources keep while the archive is open.

    Raises:
        MalformedDocument: it is not a well-formed tar, or has too many members.
        Aborted: ``is_stopped`` returned true.
    """

    def __init__(self, name: str, fd: int, is_stopped: Callable[[], bool] = lambda: False) -> None:
        self._name = name
        self._fd = fd
        self._members = _read_members(name, fd, is_stopped)
        self.memo: dict[str, object] = {}

    @property
    def name(self) -> str:
        """Name for messages."""
        return self._name

    def open(self, path: str) -> FileExtent:
        """Open a regular member. Links within the archive are followed one step. See `SourceFiles`.

        Raises:
            NotFound: there is no such member.
            MalformedDocument: it is not a file, its name is repeated, or its link leads out of the archive.
        """
        name = posixpath.normpath(path.encode("utf-8", "surrogatepass"))
        member = self._member(name)
        if member.type in (EntryType.SYMLINK, EntryType.HARDLINK):
            member = self._member(self._target(name, member))
        if member.type is not EntryType.FILE:
            raise MalformedDocument(self.name, f"{path!r} is not a file,")
        return FileExtent(self._fd, member.start, member.size, f"{path} of {self.name}")

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _member(self, path: bytes) -> ArchiveMember:
        member = self._members.get(path)
        if member is None:
            raise NotFound(f"member {printable(path)!r}", self.name)
        if member.is_repeated:
            raise MalformedDocument(self.name, f"a repeated member {printable(path)!r}")
        return member

    def _target(self, path: bytes, member: ArchiveMember) -> bytes:
        if member.type is EntryType.HARDLINK:
            return member.target
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.target))
        if target.startswith((b"/", b"../")) or target == b"..":
            raise MalformedDocument(self.name, f"a link {printable(path)!r} that leads out of the archive")
        return target


def open_archive(name: str, path: str, store: Store, limits: Limits, is_stopped: Callable[[], bool]) -> Archive:
    """Open a file as an archive, and decompress it if it is not a plain tar.

    Args:
        name: name for messages.
        path: path of the file.
        store: cache that holds a decompressed copy while the archive is open.
        limits: limits of the size of the copy.
        is_stopped: polled now and then; a true result aborts.

    Raises:
        NotFound: there is no such file.
        MalformedDocument: it cannot be read, is not a tar, or its compressed stream is corrupt.
        LimitExceeded: its uncompressed size exceeds the limits.
        CacheError: there is no space for the copy.
        Aborted: ``is_stopped`` returned true.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound("archive", path, "There is no such file") from None
    except OSError as error:
        raise MalformedDocument(path, f"not a readable file ({error.strerror})") from error
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise MalformedDocument(path, "not a regular file")
        try:
            spool = decompressed(name, fd, store, limits, is_stopped)
        except DecompressError as error:
            raise MalformedDocument(name, f"a stream that cannot be decompressed ({error.reason})") from error
        if spool is not None:
            return archive_of(name, spool, is_stopped)
        archive = Archive(name, fd, is_stopped)
        stack.pop_all()
    return archive


def archive_of(name: str, spool: Spool, is_stopped: Callable[[], bool]) -> Archive:
    """Open the content of a spool as an archive, which takes over its descriptor. Raise the errors of `Archive`."""
    fd = spool.detach()
    try:
        return Archive(name, fd, is_stopped)
    except BaseException:
        os.close(fd)
        raise


def _read_members(name: str, fd: int, is_stopped: Callable[[], bool]) -> dict[bytes, ArchiveMember]:
    try:
        index, starts = _scan(name, fd, is_stopped)
    except TarError as error:
        raise MalformedDocument(name, f"not a well-formed tar ({error.reason} at byte {error.offset})") from error
    except LayerError as error:
        raise MalformedDocument(name, f"a tar with {printable(error.path)!r} ({error.reason})") from error
    except LimitExceeded as error:
        raise MalformedDocument(name, f"a tar with {error.limit}") from error
    members: dict[bytes, ArchiveMember] = {}
    for number, path in enumerate(index.paths()):
        kind = EntryType(index.types[number])
        is_repeated = path in members and kind is not EntryType.DIRECTORY
        start, size = starts.get(number, (0, 0))  # an entry without content has no position
        members[path] = ArchiveMember(kind, start, size, index.link(number), is_repeated)
    return members


def _scan(name: str, fd: int, is_stopped: Callable[[], bool]) -> tuple[LayerIndex, dict[int, tuple[int, int]]]:
    """Feed all headers to the scanner. Content is not read; the scanner gets zeros of the same length instead.

    Returns:
        The entries, and for each entry with content its start and size in the file.
    """
    scanner = LayerScanner(name, _NO_LIMIT)
    size, at, seen = os.fstat(fd).st_size, 0, 0
    starts: dict[int, tuple[int, int]] = {}
    while at < size:
        check_stopped(is_stopped)
        try:
            chunk = os.pread(fd, _WINDOW, at)
        except OSError as error:
            raise MalformedDocument(name, f"unreadable bytes ({error.strerror})") from error
        if not chunk:
            break  # the file was truncated; the scanner raises the error
        spans = scanner.feed(chunk)
        for entry, place, length, _, _ in (spans[number] for number in range(len(spans))):
            start, known = starts.get(entry, (at + place, 0))
            starts[entry] = start, known + length
            seen += length
        at += len(chunk)
        if len(scanner.entries) > MAX_MEMBERS:
            raise MalformedDocument(name, f"more than {MAX_MEMBERS} members")
        last = len(scanner.entries) - 1
        while (left := min(scanner.content - seen, size - at)) > 0 and last in starts and _is_within(starts, last, at):
            skipped = min(left, len(_NOTHING))
            spans = scanner.feed(memoryview(_NOTHING)[:skipped])
            if len(spans) != 1 or spans[0][0] != last or spans[0][2] != skipped:
                raise MalformedDocument(name, _HOLES)
            start, known = starts[last]
            starts[last] = start, known + skipped
            seen += skipped
            at += skipped
    scanner.finish()
    if scanner.content != seen:
        raise MalformedDocument(name, _HOLES)
    return scanner.index(Digest.of(b""), Digest.of(b""), size), starts


def _is_within(starts: dict[int, tuple[int, int]], entry: int, at: int) -> bool:
    """Return whether the content of an entry extends to an offset."""
    start, size = starts[entry]
    return start + size == at
