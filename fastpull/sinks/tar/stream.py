"""Writing a file or a pipe from its front to its end, in large pieces and with as few copies as the system allows."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

_BUFFER = 256 << 10
_LARGE = 64 << 10  # from here on the kernel copies; below that the two calls it takes cost more than the bytes
_PIECE = 16 << 20  # that the kernel copies between two looks at whether to go on
_POLL_MILLISECONDS = 100
_NOT_HERE = (errno.EINVAL, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM)


class Stream:
    """Collects what is small, and has the kernel copy what is large.

    Args:
        fd: a file or a pipe, written from where it stands; if it does not block, what is full is waited for.
        check: called again and again, also while waiting; what it raises ends the call at hand.
        skip_holes: whether holes of what is copied become holes: `fd` has to be a file and empty.

    Raises:
        OSError: from any method.
    """

    def __init__(self, fd: int, check: Callable[[], None], *, skip_holes: bool = False) -> None:
        self._fd = fd
        self._check = check
        self._skip_holes = skip_holes
        self._buffer = memoryview(bytearray(_BUFFER))
        self._fill = 0
        # the best one that works here; the last always does
        self._ways = [self._copy_file_range, self._sendfile, self._read_and_write]

    def write(self, data: bytes) -> None:
        """Appends bytes, sooner or later."""
        left = memoryview(data)
        while left:
            piece = left[: self._room()]
            self._buffer[self._fill : self._fill + len(piece)] = piece
            self._fill += len(piece)
            left = left[len(piece) :]

    def copy(self, source: int, start: int, size: int, holes: Sequence[int] = ()) -> None:
        """Appends a part of a file, sooner or later.

        Args:
            source: the file.
            start: of the part.
            size: of the part.
            holes: where holes of the file begin and end, in turn, ascending. Told rather than asked for: to find one,
                tmpfs looks at every page before it, and other filesystems have had wrong answers.
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
        """Writes what was collected."""
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
        """Waits a moment for room in a pipe."""
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        poll.poll(_POLL_MILLISECONDS)


@contextlib.contextmanager
def copied_file(folder: int, name: bytes, new: bytes, check: Callable[[], None]) -> Iterator[int]:
    """A descriptor of a new file with the content of another one in the same directory.

    Args:
        folder: the directory.
        name: of a regular file.
        new: the name of the copy, which is nobody's yet.
        check: see `Stream`.

    Raises:
        OSError: it cannot be copied.
    """
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        target = os.open(new, flags, 0o600, dir_fd=folder)
        try:
            stream = Stream(target, check)
            stream.copy(source, 0, os.fstat(source).st_size)
            stream.flush()
            yield target
        finally:
            os.close(target)
    finally:
        os.close(source)
