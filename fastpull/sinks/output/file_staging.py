"""Staging of an output that is one file: a private file beside the destination, which becomes it by one rename."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastpull.concurrency.writes import flush
from fastpull.errors import OutputExists
from fastpull.native import exchange
from fastpull.sinks.output.destination import Destination, lock_staging
from fastpull.sinks.output.marker import write_marker
from fastpull.sinks.output.paths import raise_errno
from fastpull.sinks.output.replace import check_file, look
from fastpull.sinks.output.staging import AFTER_A_RACE, output_errors
from fastpull.sinks.output.walk import OutputPlace

if TYPE_CHECKING:
    from fastpull.sinks.output.marker import Label, Marker

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNNAMED = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class FileStaging:
    """A file ``.NAME.fastpull-…`` beside the destination, locked as long as its process lives.

    Args:
        destination: what it will become; nothing, or with ``force`` a regular file.
        force: replace what is there.

    Attributes:
        destination: without symbolic links, once it was created.
        spool_directory: where spools are; likewise.
        fd: of the file, to be read and written; -1 before `create` and after `publish` or `remove`.
        parent_fd: of the directory that it is in; likewise.
    """

    is_file = True

    def __init__(self, destination: str | os.PathLike[str], force: bool) -> None:
        self._named = Destination(destination)
        self.destination, self.shown = self._named.path, self._named.shown
        self.spool_directory = self._named.parent
        self._force = force
        self._keep_out: Sequence[str] = ()
        self._place = OutputPlace(-1, b"", b"")
        self.fd = self.parent_fd = -1
        self._staged = b""

    def read_marker(self) -> Marker | None:
        """The marker of what is to stay; None if there is none that can be believed, or it is to be replaced."""
        return None if self._force else self._named.read_marker(stat.S_ISREG)

    def create(self, keep_out: Sequence[str] = ()) -> None:
        """Makes the file, and removes those that killed pulls to the same destination have left.

        Args:
            keep_out: directories that the destination is not to be in.

        Raises:
            OutputExists: the destination is in use and is not to be replaced.
            OutputError: there is no place for it.
        """
        with output_errors(self.destination):
            self._keep_out, self._place = keep_out, self._named.open()
            self.parent_fd, self.destination = self._place.directory_fd, self._place.path
            self.spool_directory = self._named.parent
            check_file(look(self._place, keep_out), force=self._force, shown=self.shown)
            self._named.remove_stale(self.parent_fd)
            while not self._make():
                pass

    def open_spool(self) -> int:
        """Opens a file without a name on the same filesystem, to be read and written; the caller closes it.

        Raises:
            OutputError: the system refuses.
        """
        with output_errors(self.destination):
            return open_spool(f"/proc/self/fd/{self.parent_fd}")

    def become(self, fd: int) -> bool:
        """Puts another name of a file of the same filesystem in the place of the staged one; whether that is possible.

        The file is not to be written to from then on.

        Args:
            fd: of the file, open for reading; its lock keeps the new name from being taken for stale.
        """
        with contextlib.suppress(OSError):  # a filesystem without locks: nobody there takes anything for stale
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        linked = self._named.staging_name()
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
        """Gives the file its name; what had the name before is gone. The file is closed.

        Args:
            sync: wait until all of it is on the disk, before and after.
            label: for its marker; without one it gets none.

        Raises:
            OutputExists: something has taken the name meanwhile.
            OutputError: the system refuses.
        """
        with output_errors(self.destination):
            flush(self.fd)
            write_marker(self.fd, label, synced=sync)
            if sync:
                os.fsync(self.fd)
            if not self._has_its_name():
                self._rename()
                if sync:
                    self._sync_name()
        self.remove()

    def remove(self) -> None:
        """Removes the file, if it has not been published. May be called twice."""
        try:
            if self._staged:
                staged, self._staged = self._staged, b""
                with output_errors(self.destination), contextlib.suppress(FileNotFoundError):
                    os.unlink(staged, dir_fd=self.parent_fd)
        finally:
            for fd in (self.fd, self.parent_fd):
                if fd >= 0:
                    os.close(fd)
            self.fd = self.parent_fd = -1

    def _make(self) -> bool:
        name = self._named.staging_name()
        fd = os.open(name, _NEW, 0o666, dir_fd=self.parent_fd)
        if not lock_staging(fd):
            os.close(fd)
            return False
        self.fd, self._staged = fd, name
        return True

    def _has_its_name(self) -> bool:
        """Whether what is to be replaced is another name of the same file: see `become`."""
        try:
            there = os.stat(self._place.name, dir_fd=self.parent_fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return self._force and os.path.samestat(os.fstat(self.fd), there)

    def _sync_name(self) -> None:
        """Waits until the name is on the disk; where that cannot be had, what had it before gets it back."""
        try:
            os.fsync(self.parent_fd)
        except OSError:
            with contextlib.suppress(OSError):
                self._take_back()
            raise

    def _take_back(self) -> None:
        if self._staged and not os.path.samestat(os.fstat(self.fd), os.stat(self._staged, dir_fd=self.parent_fd)):
            raise_errno(exchange(self.parent_fd, self._staged, self.parent_fd, self._place.name), self.destination)
        else:
            os.unlink(self._place.name, dir_fd=self.parent_fd)

    def _rename(self) -> None:
        """Gives the file its name; what had it before gets the private one, where the system can swap them."""
        if not self._force:
            try:
                # unlike a rename it fails where something is; if we die before the second name goes, the next pull
                # removes it
                os.link(self._staged, self._place.name, src_dir_fd=self.parent_fd, dst_dir_fd=self.parent_fd)
            except FileExistsError as error:
                raise self._taken() from error
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                if os.path.lexists(self.destination):
                    raise self._taken() from error
            else:
                return  # and `remove` takes the first name away
        else:
            # much may have happened since `create`, and until the names are swapped
            check_file(look(self._place, self._keep_out), force=True, shown=self.shown)
            if self._swap():
                if not stat.S_ISREG(os.stat(self._staged, dir_fd=self.parent_fd, follow_symlinks=False).st_mode):
                    self._swap()
                    raise self._taken()
                return  # likewise
        os.rename(self._staged, self._place.name, src_dir_fd=self.parent_fd, dst_dir_fd=self.parent_fd)
        self._staged = b""

    def _swap(self) -> bool:
        return exchange(self.parent_fd, self._staged, self.parent_fd, self._place.name) == 0

    def _taken(self) -> OutputExists:
        return OutputExists(self.shown, "something else has just been made there", errno.EEXIST, AFTER_A_RACE)


def open_spool(folder: str | bytes) -> int:
    """Opens a file without a name in a directory, to be read and written; it is gone once it is closed.

    Raises:
        OSError: the system refuses.
    """
    try:
        return os.open(folder, _UNNAMED, 0o600)
    except OSError as error:
        if error.errno not in _NO_UNNAMED:
            raise
    path = os.path.join(os.fsencode(folder), b".fastpull-" + secrets.token_hex(8).encode())
    fd = os.open(path, _NEW, 0o600)
    os.unlink(path)
    return fd
