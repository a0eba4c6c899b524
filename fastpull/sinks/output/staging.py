"""Staging: a private directory beside the destination, which becomes it by one rename."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fastpull.errors import FastpullError, OutputError, OutputExists, from_os_error
from fastpull.native import exchange, remove_tree, sync_filesystem
from fastpull.sinks.output.destination import Destination, lock_staging
from fastpull.sinks.output.paths import DIRECTORY_FLAGS, raise_errno
from fastpull.sinks.output.replace import FileKind, ReplaceRules, check_directory, held, look
from fastpull.sinks.output.walk import OutputPlace

if TYPE_CHECKING:
    from fastpull.sinks.output.marker import Marker
    from fastpull.sinks.output.protected import Inode

AFTER_A_RACE = "Choose another, or look at what it is and try again"
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
        destination: what it will become.
        rules: what it may replace; nothing and an empty directory, it always may.

    Attributes:
        destination: without symbolic links, once it was created.
        shown: as it was given, for messages.
        root_fd: the directory that will be published.
        spool_fd: a directory for what has no place yet.
    """

    def __init__(self, destination: str | os.PathLike[str], rules: ReplaceRules) -> None:
        self._named = Destination(destination)
        self.destination, self.shown = self._named.path, self._named.shown
        self._rules = rules
        self._keep_out: Sequence[str] = ()
        self._place = OutputPlace(-1, b"", b"")
        self._parent_fd = self._fd = self.root_fd = self.spool_fd = -1
        self._staged = b""

    def read_marker(self) -> Marker | None:
        """The marker of what is to stay; None if there is none that can be believed, or it is to be replaced."""
        return None if self._rules.force else self._named.read_marker(stat.S_ISDIR)

    def create(self, keep_out: Sequence[str] = ()) -> None:
        """Makes the directory, and removes those that killed pulls to the same destination have left.

        Args:
            keep_out: directories that the destination neither replaces nor contains nor is in.

        Raises:
            OutputExists: the destination is in use and is not to be replaced.
            OutputError: there is no place for it.
        """
        with output_errors(self.destination):
            self._keep_out, self._place = keep_out, self._named.open()
            self._parent_fd, self.destination = self._place.directory_fd, self._place.path
            check_directory(look(self._place, keep_out), self._rules, self.shown)
            self._named.remove_stale(self._parent_fd)
            while not self._make():
                pass
            for name in (_ROOT, b"spool"):
                os.mkdir(name, 0o700, dir_fd=self._fd)
            self.root_fd = self._open_directory(_ROOT)
            self.spool_fd = self._open_directory(b"spool")

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
                    raise_errno(remove_tree(self._parent_fd, staged), os.path.join(self._named.parent, staged))
        finally:
            for fd in (self._fd, self._parent_fd):
                if fd >= 0:
                    os.close(fd)
            self._fd = self._parent_fd = -1

    def _make(self) -> bool:
        name = self._named.staging_name()
        os.mkdir(name, 0o700, dir_fd=self._parent_fd)
        fd = os.open(name, DIRECTORY_FLAGS, dir_fd=self._parent_fd)
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
        if not self._rules.force:
            try:
                os.rename(_ROOT, self._place.name, src_dir_fd=self._fd, dst_dir_fd=self._parent_fd)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise self._taken(error.errno) from error
                raise
            return
        with held(self._place) as old:
            check_directory(look(self._place, self._keep_out), self._rules, self.shown)  # it may be another by now
            self._swap(old)

    def _swap(self, old: Inode | None) -> None:
        """Gives the root its name; what had it gets into the staging.

        That has to be what was looked at, or what another pull has just made.
        """
        name = self._place.name
        error_number = exchange(self._fd, _ROOT, self._parent_fd, name)
        if error_number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            # no atomic swap here: for a moment there is nothing, and after a crash the old one is in the staging
            with contextlib.suppress(FileNotFoundError):
                os.rename(name, _OLD, src_dir_fd=self._parent_fd, dst_dir_fd=self._fd)
                if not self._may_go(_OLD, old):
                    os.rename(_OLD, name, src_dir_fd=self._fd, dst_dir_fd=self._parent_fd)
                    raise self._taken(errno.EEXIST)
            error_number = errno.ENOENT
        if error_number == errno.ENOENT:  # there is nothing to swap with
            os.rename(_ROOT, name, src_dir_fd=self._fd, dst_dir_fd=self._parent_fd)
            return
        raise_errno(error_number, self.destination)
        if not self._may_go(_ROOT, old):
            raise_errno(exchange(self._fd, _ROOT, self._parent_fd, name), self.destination)
            raise self._taken(errno.EEXIST)

    def _may_go(self, name: bytes, old: Inode | None) -> bool:
        path = os.path.join(self._named.parent, self._staged, name)
        found = look(OutputPlace(self._fd, name, path))
        return found.kind is FileKind.DIRECTORY and (found.inode == old or found.is_rootfs)

    def _taken(self, number: int) -> OutputExists:
        return OutputExists(self.shown, "something else has just been made there", number, AFTER_A_RACE)

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

    def _open_directory(self, name: bytes) -> int:
        return os.open(name, DIRECTORY_FLAGS, dir_fd=self._fd)
