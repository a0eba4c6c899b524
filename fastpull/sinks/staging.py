"""Staging: a private directory beside the destination, which becomes it by one rename."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator

from fastpull.errors import FastpullError, OutputError, OutputExists, from_os_error, printable
from fastpull.sinks.destination import Destination, lock_staging
from fastpull.sinks.paths import FOLDER, raise_errno
from fastpull.tarstage import exchange, remove_tree, sync_filesystem

_ROOT = b"root"
_OLD = b"old"
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
        self._place = Destination(destination)
        self.destination, self.shown = self._place.path, self._place.shown
        self._force = force
        self._parent_fd = self._fd = self.root_fd = self.spool_fd = -1
        self._staged = b""

    def create(self) -> None:
        """Makes the directory, and removes those that killed pulls to the same destination have left.

        Raises:
            OutputExists: the destination is in use and is not to be replaced.
            OutputError: there is no place for it.
        """
        with output_errors(self.destination):
            self._parent_fd = self._place.open_parent()
            self._check_destination()
            self._place.remove_stale(self._parent_fd)
            while not self._make():
                pass
            for name in (_ROOT, b"spool"):
                os.mkdir(name, 0o700, dir_fd=self._fd)
            self.root_fd = self._open_folder(_ROOT)
            self.spool_fd = self._open_folder(b"spool")

    def publish(self, sync: bool) -> OutputError | None:
        """Gives the root its name; what had the name before is removed afterwards.

        Args:
            sync: wait until all of it is on the disk, before and after.

        Returns:
            Why that could not be removed, if it could not.

        Raises:
            OutputExists: something has taken the name meanwhile.
            OutputError: the system refuses.
        """
        with output_errors(self.destination):
            if sync:
                raise_errno(sync_filesystem(self._fd), self.destination)
            self._rename()
            if sync:
                self._sync_name()
        try:
            self.remove()
        except OutputError as error:
            return error
        return None

    def remove(self) -> None:
        """Removes the directory with what is left in it. May be called twice."""
        for fd in (self.root_fd, self.spool_fd):
            if fd >= 0:
                os.close(fd)
        self.root_fd = self.spool_fd = -1
        try:
            if self._staged:
                staged, self._staged = self._staged, b""
                with output_errors(self.destination):
                    raise_errno(remove_tree(self._parent_fd, staged), os.path.join(self._place.parent, staged))
        finally:
            for fd in (self._fd, self._parent_fd):
                if fd >= 0:
                    os.close(fd)
            self._fd = self._parent_fd = -1

    def _check_destination(self) -> None:
        if os.path.isdir(self.destination):
            if os.path.ismount(self.destination):
                raise OutputError(self.shown, "a mount point cannot be replaced, choose a directory in it", errno.EBUSY)
            if os.path.join(os.getcwdb(), b"").startswith(os.path.join(self.destination, b"")):
                raise OutputError(self.shown, "the current directory cannot be replaced, choose one in it", errno.EBUSY)
            for point in mount_points():
                if point.startswith(self.destination + b"/"):
                    reason = f"{printable(point)} is mounted in it, unmount that first"
                    raise OutputError(self.shown, reason, errno.EBUSY)
            if not self._force and os.listdir(self.destination):
                raise OutputExists(self.shown, "directory not empty", errno.ENOTEMPTY)
        elif os.path.lexists(self.destination) and not self._force:
            raise OutputExists(self.shown, "file exists", errno.EEXIST)

    def _make(self) -> bool:
        name = self._place.staging_name()
        os.mkdir(name, 0o700, dir_fd=self._parent_fd)
        fd = os.open(name, FOLDER, dir_fd=self._parent_fd)
        if not lock_staging(fd):
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

    def _rename(self) -> None:
        if not self._force:
            try:
                os.rename(_ROOT, self._place.name, src_dir_fd=self._fd, dst_dir_fd=self._parent_fd)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise OutputExists(self.shown, "something else has just been made there", error.errno) from error
                raise
            return
        error_number = exchange(self._fd, _ROOT, self._parent_fd, self._place.name)
        if error_number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            # no atomic swap here: for a moment there is nothing, and after a crash the old one is in the staging
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._place.name, _OLD, src_dir_fd=self._parent_fd, dst_dir_fd=self._fd)
            error_number = errno.ENOENT
        if error_number == errno.ENOENT:  # there is nothing to swap with
            os.rename(_ROOT, self._place.name, src_dir_fd=self._fd, dst_dir_fd=self._parent_fd)
        else:
            raise_errno(error_number, self.destination)

    def _sync_name(self) -> None:
        """Waits until the name is on the disk; where that cannot be had, what had it before gets it back."""
        try:
            os.fsync(self._parent_fd)
        except OSError:
            with contextlib.suppress(OSError):
                self._take_back()
            raise

    def _take_back(self) -> None:
        if exchange(self._fd, _ROOT, self._parent_fd, self._place.name):  # if not swapped, then renamed
            os.rename(self._place.name, _ROOT, src_dir_fd=self._parent_fd, dst_dir_fd=self._fd)
            os.rename(_OLD, self._place.name, src_dir_fd=self._fd, dst_dir_fd=self._parent_fd)

    def _open_folder(self, name: bytes) -> int:
        return os.open(name, FOLDER, dir_fd=self._fd)


def mount_points() -> list[bytes]:
    """Where filesystems are mounted, as this process sees it."""
    with open("/proc/self/mountinfo", "rb") as file:
        fields = [line.split(b" ", 5)[4] for line in file]
    return [re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field) for field in fields]
