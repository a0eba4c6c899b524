"""Staging of a file: a private file beside the destination, published by one rename."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from typing import TYPE_CHECKING

from fastpull.concurrency.writes import flush
from fastpull.sinks.output.errors import output_errors, raise_errno
from fastpull.sinks.output.marker import write_marker
from fastpull.sinks.output.replace import ExistingOutput, check_file
from fastpull.sinks.output.staging import Staging

if TYPE_CHECKING:
    from fastpull.sinks.output.marker import Label

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNNAMED = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class FileStaging(Staging):
    """A private file, open for reading and writing.

    Args:
        destination: path of the output.
        force: whether an existing regular file is replaced.

    Attributes:
        spool_directory: directory of spool files; after `create` without symbolic links.
    """

    is_file = True

    def __init__(self, destination: str | os.PathLike[str], force: bool) -> None:
        super().__init__(destination, force=force)
        self.spool_directory = self._target.parent

    def open_spool(self) -> int:
        """Open an unnamed file on the same filesystem for reading and writing; the caller closes it.

        Raises:
            OutputError: the file cannot be created.
        """
        with output_errors(self.destination):
            return open_spool(f"/proc/self/fd/{self.parent_fd}")

    def become(self, fd: int) -> bool:
        """Replace the staged file with a hard link to a file of the same filesystem.

        The file must not be written to afterwards.

        Args:
            fd: the file, open for reading; its shared lock keeps the new name from being removed as stale.

        Returns:
            Whether the filesystem could make the link.
        """
        with contextlib.suppress(OSError):  # a filesystem without locks has no stale stagings removed either
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        linked = self._target.staging_name()
        try:
            os.link(f"/proc/self/fd/{fd}", linked, dst_dir_fd=self.parent_fd, follow_symlinks=True)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.ENOENT, *_NO_LINKS):
                return False
            raise
        os.rename(linked, self._staged, src_dir_fd=self.parent_fd, dst_dir_fd=self.parent_fd)
        os.dup2(fd, self.fd, inheritable=False)
        return True

    def publish(self, sync: bool, label: Label | None = None) -> None:
        """Give the file its name, replace an existing file, and close it.

        Args:
            sync: whether the content and the name are synchronised to the disk.
            label: content of the marker; None for no marker.

        Raises:
            OutputExists: another process has created the destination during the pull.
            OutputError: the file cannot be published.
        """
        with output_errors(self.destination):
            flush(self.fd)
            write_marker(self.fd, label, synced=sync)
            if sync:
                os.fsync(self.fd)
            if not self._is_destination():
                self._publish_name(sync=sync)
        self.remove()

    @staticmethod
    def _is_kind(mode: int) -> bool:
        return stat.S_ISREG(mode)

    def _check(self, found: ExistingOutput) -> None:
        check_file(found, force=self._force, shown=self.shown)

    def _create_staged(self, name: bytes) -> int:
        return os.open(name, _NEW, 0o666, dir_fd=self.parent_fd)

    def _prepare(self) -> None:
        self.spool_directory = self._target.parent

    def _remove_staged(self, name: bytes) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.parent_fd)

    def _is_destination(self) -> bool:
        """Return whether the existing output is another name of the same file, see `become`."""
        try:
            existing = os.stat(self._place.name, dir_fd=self.parent_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return self._force and os.path.samestat(os.fstat(self.fd), existing)

    def _restore(self) -> None:
        if self._staged and not os.path.samestat(os.fstat(self.fd), os.stat(self._staged, dir_fd=self.parent_fd)):
            raise_errno(self._exchange(self.parent_fd, self._staged), self.destination)
        else:
            os.unlink(self._place.name, dir_fd=self.parent_fd)

    def _rename(self) -> None:
        """Give the file its name; `remove` then removes the staged name, which is the previous output after a swap."""
        if not self._force:
            try:
                # unlike a rename, a link fails if the destination exists; the next pull removes a left-over staged name
                os.link(self._staged, self._place.name, src_dir_fd=self.parent_fd, dst_dir_fd=self.parent_fd)
            except FileExistsError as error:
                raise self._taken() from error
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if os.path.lexists(self.destination):
                    raise self._taken() from error
            else:
                return
        else:
            self._check_destination()
            if self._exchange(self.parent_fd, self._staged) == 0:
                if not stat.S_ISREG(os.stat(self._staged, dir_fd=self.parent_fd, follow_symlinks=False).st_mode):
                    self._exchange(self.parent_fd, self._staged)
                    raise self._taken()
                return
        os.rename(self._staged, self._place.name, src_dir_fd=self.parent_fd, dst_dir_fd=self.parent_fd)
        self._staged = b""


def open_spool(directory: str | bytes) -> int:
    """Open an unnamed file in a directory for reading and writing; it disappears when it is closed.

    Raises:
        OSError: the file cannot be created.
    """
    try:
        return os.open(directory, _UNNAMED, 0o600)
    except OSError as error:
        if error.errno not in _NO_UNNAMED:
            raise
    path = os.path.join(os.fsencode(directory), b".fastpull-" + secrets.token_hex(8).encode())
    fd = os.open(path, _NEW, 0o600)
    os.unlink(path)
    return fd
