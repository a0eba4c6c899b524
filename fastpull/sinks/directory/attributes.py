"""Extended attributes in a directory output."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from fastpull.errors import OutputError, printable
from fastpull.layers.xattrs import is_kept
from fastpull.sinks.output.marker import MARKER_NAME
from fastpull.sinks.output.paths import opened

if TYPE_CHECKING:
    from fastpull.layers.entry import Entry
    from fastpull.sinks.base import SinkReport

_MARKER = os.fsencode(MARKER_NAME)  # left out, so that an image cannot bring its own marker
_USER = b"user."
_PLENTY = 16 << 20  # with more free bytes, ENOSPC means that one attribute is too large


class AttributeWriter:
    """Sets the extended attributes of entries, and counts the ones that are left out.

    Args:
        destination: path of the output, for messages.
        report: report of the sink.
        privileged: whether this process may set attributes of all namespaces.

    Raises:
        OutputError: from any method, if an attribute is too large for the filesystem.
        OSError: from any method, for any other failure.
    """

    def __init__(self, destination: bytes, report: SinkReport, *, privileged: bool) -> None:
        self._destination = destination
        self._report = report
        self._privileged = privileged

    def write_file(self, fd: int, name: bytes, entry: Entry, mode: int) -> None:
        """Set the attributes of a regular file that already has its mode.

        ``user.*`` needs write permission, so a read-only file is made writable meanwhile.

        Args:
            fd: open directory of the file.
            name: name of the file.
            entry: entry with the attributes.
            mode: mode of the file, before and after.
        """
        if not entry.xattrs:
            return
        is_closed = not mode & stat.S_IWUSR and any(attribute.startswith(_USER) for attribute, _ in entry.xattrs)
        with opened(fd, name) as path:
            if is_closed:
                os.chmod(path, mode | stat.S_IWUSR)
            try:
                self.write(path, entry)
            finally:
                if is_closed:
                    os.chmod(path, mode)

    def write_at(self, fd: int, name: bytes, entry: Entry) -> None:
        """Set the attributes of a symbolic link, device or fifo in a directory."""
        # setxattrat needs Linux 6.13; the path through the descriptor cannot leave the directory
        self.write(os.fsencode(f"/proc/self/fd/{fd}/") + name, entry, follow=False)

    def write(self, path: str | bytes, entry: Entry, *, follow: bool = True) -> None:
        """Set the attributes of an inode, by path."""
        for name, value in entry.xattrs:
            is_set = (
                name != _MARKER and is_kept(name, value, entry.type) and self._set(path, name, value, entry, follow)
            )
            if not is_set:
                self._report.left_out["xattrs"] += 1

    def _set(self, path: str | bytes, name: bytes, value: bytes, entry: Entry, follow: bool) -> bool:
        try:
            os.setxattr(path, name, value, follow_symlinks=follow)
        except OSError as error:
            # EPERM: security.* without privilege; user.* on what is neither file nor directory
            may_not = not self._privileged or name.startswith(_USER)
            if error.errno == errno.ENOTSUP or (may_not and error.errno in (errno.EPERM, errno.EACCES)):
                return False
            if not _is_too_large(error, path if follow else os.path.dirname(path)):
                raise
            what = f"the extended attribute {printable(name)} of {len(value)} bytes"
            culprit = os.path.join(self._destination, entry.path)
            raise OutputError(printable(culprit), f"{what} is too large for this filesystem", errno.E2BIG) from error
        return True


def _is_too_large(error: OSError, path: str | bytes) -> bool:
    """Return whether an attribute is too large, as opposed to a full filesystem.

    Spec: setxattr(2); xattr(7), Filesystem differences: ext4 returns ENOSPC if an attribute does not fit into a block.
    """
    if error.errno == errno.ENOSPC:
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize > _PLENTY
    return error.errno in (errno.E2BIG, errno.ERANGE)
