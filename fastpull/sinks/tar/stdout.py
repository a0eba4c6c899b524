"""Standard output as the destination of a tar."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastpull.errors import InvalidSetting, OutputError
from fastpull.sinks.output.errors import output_errors
from fastpull.sinks.output.file_staging import open_spool

if TYPE_CHECKING:
    from fastpull.sinks.output.marker import Label

_STDOUT = 1


class StandardOutput:
    """Replaces `FileStaging` for standard output; written bytes cannot be taken back.

    Attributes:
        destination: name in messages.
        spool_directory: directory of spool files: ``TMPDIR``.
        fd: duplicate of standard output; -1 before `create` and after `publish` or `remove`.

    Raises:
        InvalidSetting: from the constructor, if standard output is a terminal.
    """

    destination = b"standard output"
    is_file = False

    def __init__(self) -> None:
        if os.isatty(_STDOUT):
            raise InvalidSetting("-", "an archive is not for a terminal, redirect the output or name a file")
        self.spool_directory = os.fsencode(tempfile.gettempdir())
        self.fd = -1

    def read_marker(self) -> None:
        """Return None: standard output has no marker."""

    def create(self, _keep_out: Sequence[str] = ()) -> None:
        """Duplicate standard output.

        Raises:
            OutputError: standard output is closed.
        """
        if sys.__stdout__ is None:  # its descriptor may be that of another file by now
            raise OutputError(self.destination.decode(), "it is closed", errno.EBADF)
        with output_errors(self.destination):
            if stat.S_ISFIFO(os.fstat(_STDOUT).st_mode):
                # a reader that stops reading must not block cancellation; O_NONBLOCK holds for this descriptor only
                with contextlib.suppress(OSError):  # a pipe of another user: writing blocks then
                    self.fd = os.open(f"/proc/self/fd/{_STDOUT}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if self.fd < 0:
                self.fd = os.dup(_STDOUT)

    def open_spool(self) -> int:
        """Open an unnamed file for reading and writing; the caller closes it.

        Raises:
            OutputError: the file cannot be created.
        """
        with output_errors(self.spool_directory):
            return open_spool(self.spool_directory)

    def publish(self, sync: bool, _label: Label | None = None) -> None:
        """Close the descriptor.

        Args:
            sync: whether a regular file is synchronised to its disk.

        Raises:
            OutputError: the bytes could not be stored.
        """
        with output_errors(self.destination):
            if sync and stat.S_ISREG(os.fstat(self.fd).st_mode):
                os.fsync(self.fd)
            fd, self.fd = self.fd, -1
            os.close(fd)

    def remove(self) -> None:
        """Close the descriptor. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
