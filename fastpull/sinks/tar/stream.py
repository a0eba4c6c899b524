"""Sequential writes to a file or a pipe, in large pieces and with as few copies as the kernel allows."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

_BUFFER = 256 << 10
_LARGE = 64 << 10  # from this size on the kernel copies; below, two more system calls cost more than copying the bytes
_PIECE = 16 << 20  # bytes that the kernel copies between two checks for cancellation
_POLL_MILLISECONDS = 100
_NOT_HERE = (errno.EINVAL, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM)


class Stream:
    """Buffers small writes, and lets the kernel copy large parts of files.

    Args:
        fd: file or pipe, written from its current position; may be non-blocking.
        check: called before each operation and while waiting; its exception ends the call.
        skip_holes: whether holes of a copied file become holes; needs an empty regular file.

    Raises:
        OSError: from any method.
    """

    def __init__(self, fd: int, check: Callable[[], None], *, skip_holes: bool = False) -> None:
        self._fd = fd
        self._check = check
        self._skip_holes = skip_holes
        self._buffer = memoryview(bytearray(_BUFFER))
        self._fill = 0
        # the fastest first; one that does not work for these files is dropped, and the last one always works
        self._ways = [self._copy_file_range, self._sendfile, self._read_and_write]

    def write(self, data: bytes) -> None:
        """Append bytes; they may stay in the buffer until `flush`."""
        left = memoryview(data)
        while left:
            piece = left[: self._room()]
            self._buffer[self._fill : self._fill + len(piece)] = piece
            self._fill += len(piece)
            left = left[len(piece) :]

    def copy(self, source: int, start: int, size: int, holes: Sequence[int] = ()) -> None:
        """Append a part of a file; small parts may stay in the buffer until `flush`.

        Args:
            source: open file.
            start: offset of the part.
            size: bytes of the part.
            holes: begin and end of each hole of the file, ascending. The caller knows them: with SEEK_HOLE, tmpfs
                visits every page before a hole, and other filesystems have returned wrong offsets.
        """
        if size >= _LARGE:
            self.flush()
            self._copy_large(source, start, start + size, holes)
            return
        while size:
            room = self._room()
            done = os.preadv(source, [self._buffer[self._fill : self._fill + min(room, size)]], start)
            if not done:
                raise OSError(errno.EIO, "a spool file is shorter than what was written to it")
            self._fill += done
            start += done
            size -= done

    def flush(self) -> None:
        """Write the buffer."""
        left = self._buffer[: self._fill]
        while left:
            self._check()
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                self._wait()
        self._fill = 0

    def _room(self) -> int:
        if self._fill == _BUFFER:
            self.flush()
        return _BUFFER - self._fill

    def _copy_large(self, source: int, start: int, stop: int, holes: Sequence[int]) -> None:
        while start < stop:
            end = stop
            if self._skip_holes and holes:
                border = bisect_right(holes, start)
                end = min(stop, holes[border]) if border < len(holes) else stop
                if border % 2:
                    os.lseek(self._fd, end - start, os.SEEK_CUR)
                    start = end
            while start < end:
                start += self._copy_piece(source, start, min(_PIECE, end - start))

    def _copy_piece(self, source: int, start: int, size: int) -> int:
        while True:
            self._check()
            try:
                if done := self._ways[0](source, start, size):
                    return done
            except BlockingIOError:
                self._wait()
                continue
            except OSError as error:
                if error.errno not in _NOT_HERE or len(self._ways) == 1:
                    raise
            del self._ways[0]

    def _copy_file_range(self, source: int, start: int, size: int) -> int:
        return os.copy_file_range(source, self._fd, size, start)

    def _sendfile(self, source: int, start: int, size: int) -> int:
        return os.sendfile(self._fd, source, start, size)

    def _read_and_write(self, source: int, start: int, size: int) -> int:
        data = os.pread(source, min(size, _BUFFER), start)
        if not data:
            raise OSError(errno.EIO, "a spool file is shorter than what was written to it")
        return os.write(self._fd, data)

    def _wait(self) -> None:
        """Wait until a pipe has room, or for a short time."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        poll.poll(_POLL_MILLISECONDS)


@contextlib.contextmanager
def copied_file(directory_fd: int, name: bytes, new: bytes, check: Callable[[], None]) -> Iterator[int]:
    """Copy a file in its directory, and yield the open copy.

    Args:
        directory_fd: open directory.
        name: name of a regular file.
        new: name of the copy, which must not exist.
        check: see `Stream`.

    Raises:
        OSError: the file cannot be copied.
    """
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        target = os.open(new, flags, 0o600, dir_fd=directory_fd)
        try:
            stream = Stream(target, check)
            stream.copy(source, 0, os.fstat(source).st_size)
            stream.flush()
            yield target
        finally:
            os.close(target)
    finally:
        os.close(source)
