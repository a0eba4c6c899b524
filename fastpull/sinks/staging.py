"""Staging: a private directory beside the destination, which becomes it by one rename."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator

from fastpull.errors import FastpullError, OutputError, OutputExists, from_os_error, printable
from fastpull.sinks.paths import FOLDER, raise_errno
from fastpull.tarstage import exchange, remove_tree, sync_filesystem

_MARK = b".fastpull-"
_ROOT = b"root"
_ACLS = ("system.posix_acl_default", "system.posix_acl_access")


@contextlib.contextmanager
def output_errors(path: bytes) -> Iterator[None]:
    """Makes ours of what the system says about an output."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FastpullError):
            raise
        raise from_os_error(OutputError, error, error.filename if isinstance(error.filename, str) else path) from error


class Staging:
    """A directory ``.NAME.fastpull-…`` that no other user can enter, locked as long as its process lives.

    Args:
        destination: what it will become; nothing, an empty directory, or with ``force`` anything.
        force: replace what is there.

    Attributes:
        root_fd: the directory that will be published.
        spool_fd: a directory for what has no place yet.
    """

    def __init__(self, destination: str | os.PathLike[str], force: bool) -> None:
        self.destination = os.path.realpath(os.fsencode(destination))
        self.shown = printable(os.fsencode(os.fspath(destination)))
        self._force = force
        self._parent, self._name = os.path.split(self.destination)
        self._parent_fd = self._fd = self.root_fd = self.spool_fd = -1
        self._staged = b""

    def create(self) -> None:
        """Makes the directory, and removes those that killed pulls to the same destination have left.

        Raises:
            OutputExists: the destination is in use and is not to be replaced.
            OutputError: there is no place for it.
        """
        with output_errors(self.destination):
            self._check_destination()
            self._parent_fd = os.open(self._parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._remove_stale()
            while not self._make():
                pass
            for name in (_ROOT, b"spool"):
                os.mkdir(name, 0o700, dir_fd=self._fd)
            self.root_fd = self._open_folder(_ROOT)
            self.spool_fd = self._open_folder(b"spool")

    def publish(self, sync: bool) -> None:
        """Gives the root its name; what had the name before is removed afterwards.

        Args:
            sync: wait until all of it is on the disk, before and after.

        Raises:
            OutputExists: something has taken the name meanwhile.
            OutputError: the system refuses.
        """
        with output_errors(self.destination):
            if sync:
                raise_errno(sync_filesystem(self._fd), self.destination)
            self._rename()
            if sync:
                os.fsync(self._parent_fd)
        self.remove()

    def remove(self) -> None:
        """Removes the directory with what is left in it. May be called twice."""
        for fd in (self.root_fd, self.spool_fd):
            if fd >= 0:
                os.close(fd)
        self.root_fd = self.spool_fd = -1
        if self._staged:
            staged, self._staged = self._staged, b""
            with output_errors(self.destination):
                raise_errno(remove_tree(self._parent_fd, staged), os.path.join(self._parent, staged))
        for fd in (self._fd, self._parent_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._parent_fd = -1

    def _check_destination(self) -> None:
        if not self._name:
            raise OutputError(self.shown, "the root directory cannot be an output", errno.EBUSY)
        if not os.path.isdir(self._parent):
            raise OutputError(printable(self._parent), "no such directory, make it first", errno.ENOENT)
        if os.path.isdir(self.destination):
            if os.path.ismount(self.destination):
                raise OutputError(self.shown, "a mount point cannot be replaced, choose a directory in it", errno.EBUSY)
            if os.path.samefile(self.destination, b"."):
                raise OutputError(self.shown, "the current directory cannot be replaced, choose one in it", errno.EBUSY)
            if not self._force and os.listdir(self.destination):
                raise OutputExists(self.shown, "directory not empty", errno.ENOTEMPTY)
        elif os.path.lexists(self.destination) and not self._force:
            raise OutputExists(self.shown, "file exists", errno.EEXIST)

    def _make(self) -> bool:
        name = b".%s%s%s" % (self._name[:200], _MARK, secrets.token_hex(4).encode())
        os.mkdir(name, 0o700, dir_fd=self._parent_fd)
        fd = os.open(name, FOLDER, dir_fd=self._parent_fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.fstat(fd).st_nlink > 0
        except BlockingIOError:
            is_ours = False
        except OSError:
            is_ours = True  # a filesystem without locks: nobody there takes anything for stale
        if not is_ours:  # somebody has taken it for stale between its making and its lock
            os.close(fd)
            return False
        self._fd, self._staged = fd, name
        # what is made inside must not inherit a group or an access list from the parent
        os.fchown(fd, -1, os.getegid())
        os.fchmod(fd, 0o700)
        for acl in _ACLS:
            with contextlib.suppress(OSError):
                os.removexattr(fd, acl)
        return True

    def _remove_stale(self) -> None:
        prefix = b".%s%s" % (self._name[:200], _MARK)
        for name in os.listdir(self._parent):
            if name.startswith(prefix):
                with contextlib.suppress(OSError):
                    fd = os.open(name, FOLDER, dir_fd=self._parent_fd)
                    try:
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        remove_tree(self._parent_fd, name)
                    finally:
                        os.close(fd)

    def _rename(self) -> None:
        if not self._force:
            try:
                os.rename(_ROOT, self._name, src_dir_fd=self._fd, dst_dir_fd=self._parent_fd)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise OutputExists(self.shown, "something else has just been made there", error.errno) from error
                raise
            return
        error_number = exchange(self._fd, _ROOT, self._parent_fd, self._name)
        if error_number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            # no atomic swap here: for a moment there is nothing, and after a crash the old one is in the staging
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._name, b"old", src_dir_fd=self._parent_fd, dst_dir_fd=self._fd)
            error_number = errno.ENOENT
        if error_number == errno.ENOENT:  # there is nothing to swap with
            os.rename(_ROOT, self._name, src_dir_fd=self._fd, dst_dir_fd=self._parent_fd)
        else:
            raise_errno(error_number, self.destination)

    def _open_folder(self, name: bytes) -> int:
        return os.open(name, FOLDER, dir_fd=self._fd)
