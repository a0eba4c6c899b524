"""Staging of a directory: a private directory beside the destination, published by one rename."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from fastpull.errors import OutputError
from fastpull.native import remove_tree, sync_filesystem
from fastpull.sinks.output.errors import output_errors, raise_errno
from fastpull.sinks.output.paths import DIRECTORY_FLAGS
from fastpull.sinks.output.replace import (
    ExistingOutput,
    FileKind,
    ReplaceRules,
    check_directory,
    held_inode,
    inspect,
)
from fastpull.sinks.output.staging import Staging
from fastpull.sinks.output.walk import OutputPlace

if TYPE_CHECKING:
    from fastpull.sinks.output.protected import Inode

_ROOT, _SPOOL, _OLD = b"root", b"spool", b"old"
_ACLS = ("system.posix_acl_default", "system.posix_acl_access")
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


class DirectoryStaging(Staging):
    """A private directory that contains the directory to publish and a spool.

    Args:
        destination: path of the output.
        rules: what the output may replace; a missing or an empty directory may always be replaced.

    Attributes:
        root_fd: open directory that will be published.
        spool_fd: open directory for payload whose final path is not known yet.
    """

    def __init__(self, destination: str | os.PathLike[str], rules: ReplaceRules) -> None:
        super().__init__(destination, force=rules.force)
        self._rules = rules
        self.root_fd = self.spool_fd = -1

    def publish(self, sync: bool) -> list[str]:
        """Give the directory its name and remove what it replaces.

        Args:
            sync: whether the content and the name are synchronised to the disk.

        Returns:
            A warning if the replaced directory could not be removed.

        Raises:
            OutputExists: another process has created the destination during the pull.
            OutputError: the directory cannot be published.
        """
        with output_errors(self.destination):
            if sync:
                raise_errno(sync_filesystem(self.fd), self.destination)
            self._publish_name(sync=sync)
        try:
            self.remove()
        except OutputError as error:
            return [f"the output is complete, but what it replaces could not be removed ({error})"]
        return []

    def remove(self) -> None:
        """See `Staging.remove`."""
        for fd in (self.root_fd, self.spool_fd):
            if fd >= 0:
                os.close(fd)
        self.root_fd = self.spool_fd = -1
        super().remove()

    @staticmethod
    def _is_kind(mode: int) -> bool:
        return stat.S_ISDIR(mode)

    def _check(self, found: ExistingOutput) -> None:
        check_directory(found, self._rules, self.shown)

    def _create_staged(self, name: bytes) -> int:
        os.mkdir(name, 0o700, dir_fd=self.parent_fd)
        return os.open(name, DIRECTORY_FLAGS, dir_fd=self.parent_fd)

    def _prepare(self) -> None:
        # the output must not inherit a group or an access list from the parent directory
        os.fchown(self.fd, -1, os.getegid())
        os.fchmod(self.fd, 0o700)
        for acl in _ACLS:
            with contextlib.suppress(OSError):
                os.removexattr(self.fd, acl)
        for name in (_ROOT, _SPOOL):
            os.mkdir(name, 0o700, dir_fd=self.fd)
        self.root_fd = os.open(_ROOT, DIRECTORY_FLAGS, dir_fd=self.fd)
        self.spool_fd = os.open(_SPOOL, DIRECTORY_FLAGS, dir_fd=self.fd)

    def _remove_staged(self, name: bytes) -> None:
        raise_errno(remove_tree(self.parent_fd, name), os.path.join(self._target.parent, name))

    def _rename(self) -> None:
        if not self._force:
            try:
                os.rename(_ROOT, self._place.name, src_dir_fd=self.fd, dst_dir_fd=self.parent_fd)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise self._taken(error.errno) from error
                raise
            return
        with held_inode(self._place) as old:
            self._check_destination()
            self._replace(old)

    def _replace(self, old: Inode | None) -> None:
        """Exchange the new directory with the existing one, and verify that it is the one that was checked.

        Args:
            old: inode of the directory that was checked.
        """
        name = self._place.name
        error_number = self._exchange(self.fd, _ROOT)
        if error_number in _NO_EXCHANGE:
            # without an atomic exchange the name is free for a moment; after a crash the old one is in the staging
            with contextlib.suppress(FileNotFoundError):
                os.rename(name, _OLD, src_dir_fd=self.parent_fd, dst_dir_fd=self.fd)
                if not self._may_remove(_OLD, old):
                    os.rename(_OLD, name, src_dir_fd=self.fd, dst_dir_fd=self.parent_fd)
                    raise self._taken()
            error_number = errno.ENOENT
        if error_number == errno.ENOENT:  # nothing to exchange with
            os.rename(_ROOT, name, src_dir_fd=self.fd, dst_dir_fd=self.parent_fd)
            return
        raise_errno(error_number, self.destination)
        if not self._may_remove(_ROOT, old):
            raise_errno(self._exchange(self.fd, _ROOT), self.destination)
            raise self._taken()

    def _may_remove(self, name: bytes, old: Inode | None) -> bool:
        """Return whether a replaced directory is the one that was checked, or one that another pull has made."""
        path = os.path.join(self._target.parent, self._staged, name)
        found = inspect(OutputPlace(self.fd, name, path))
        return found.kind is FileKind.DIRECTORY and (found.inode == old or found.is_rootfs)

    def _restore(self) -> None:
        if self._exchange(self.fd, _ROOT):  # the previous output was renamed, not exchanged
            os.rename(self._place.name, _ROOT, src_dir_fd=self.parent_fd, dst_dir_fd=self.fd)
            os.rename(_OLD, self._place.name, src_dir_fd=self.fd, dst_dir_fd=self.parent_fd)
