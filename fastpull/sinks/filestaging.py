"""Staging of an output that is one file: a private file beside the destination, which becomes it by one rename."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat

from fastpull.errors import OutputError, OutputExists
from fastpull.sinks.destination import Destination, lock_staging
from fastpull.sinks.paths import raise_errno
from fastpull.sinks.staging import output_errors
from fastpull.tarstage import exchange
from fastpull.writing import flush

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
        destination: without symbolic links.
        spool_folder: where spools are.
        fd: of the file, to be read and written; -1 before `create` and after `publish` or `remove`.
        parent_fd: of the directory that it is in; likewise.
    """

    is_file = True

    def __init__(self, destination: str | os.PathLike[str], force: bool) -> None:
        self._place = Destination(destination)
        self.destination, self.shown = self._place.path, self._place.shown
        self.spool_folder = self._place.parent
        self._force = force
        self.fd = self.parent_fd = -1
        self._staged = b""

    def create(self) -> None:
        """Makes the file, and removes those that killed pulls to the same destination have left.

        Raises:
            OutputExists: the destination is in use and is not to be replaced.
            OutputError: there is no place for it.
        """
        with output_errors(self.destination):
            self.parent_fd = self._place.open_parent()
            self._check_destination()
            self._place.remove_stale(self.parent_fd)
            while not self._make():
                pass

    def open_spool(self) -> int:
        """Opens a file without a name on the same filesystem, to be read and written; the caller closes it.

        Raises:
            OutputError: the system refuses.
        """
        with output_errors(self.destination):
            return open_spool(self.spool_folder)

    def become(self, path: str, fd: int) -> bool:
        """Puts another name of a file of the same filesystem in the place of the staged one; whether that is possible.

        The file is not to be written to from then on.

        Args:
            path: of the file.
            fd: of the file, open for reading; its lock keeps the new name from being taken for stale.
        """
        with contextlib.suppress(OSError):  # a filesystem without locks: nobody there takes anything for stale
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        linked = self._place.staging_name()
        try:
            os.link(path, linked, dst_dir_fd=self.parent_fd)
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.ENOENT, *_NO_LINKS):
                return False
            raise
        os.rename(linked, self._staged, src_dir_fd=self.parent_fd, dst_dir_fd=self.parent_fd)
        os.dup2(fd, self.fd, inheritable=False)
        return True

    def publish(self, sync: bool) -> None:
        """Gives the file its name; what had the name before is gone. The file is closed.

        Args:
            sync: wait until all of it is on the disk, before and after.

        Raises:
            OutputExists: something has taken the name meanwhile.
            OutputError: the system refuses.
        """
        with output_errors(self.destination):
            if sync:
                os.fsync(self.fd)
            flush(self.fd)
            if not self._has_its_name():
                self._rename(keep=sync)
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

    def _check_destination(self) -> None:
        try:
            state = os.lstat(self.destination)
        except FileNotFoundError:
            return
        if stat.S_ISDIR(state.st_mode):
            raise OutputError(self.shown, "a directory is there, choose another name or remove it", errno.EISDIR)
        if not stat.S_ISREG(state.st_mode):
            raise OutputError(self.shown, "what is there is not a regular file, choose another name", errno.EEXIST)
        if not self._force:
            raise OutputExists(self.shown, "file exists", errno.EEXIST)

    def _make(self) -> bool:
        name = self._place.staging_name()
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

    def _rename(self, *, keep: bool) -> None:
        """Gives the file its name; with ``keep`` what had it before gets the private one, where the system can."""
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
        elif keep and exchange(self.parent_fd, self._staged, self.parent_fd, self._place.name) == 0:
            return  # likewise
        os.rename(self._staged, self._place.name, src_dir_fd=self.parent_fd, dst_dir_fd=self.parent_fd)
        self._staged = b""

    def _taken(self) -> OutputExists:
        return OutputExists(self.shown, "something else has just been made there", errno.EEXIST)


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
