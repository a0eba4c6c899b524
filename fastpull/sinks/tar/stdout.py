"""Standard output as the destination of an output that is one file."""

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
    """Stands where `FileStaging` stands for a file with a name; there is nothing that could be taken back.

    Attributes:
        destination: its name in messages.
        spool_directory: where spools are: ``TMPDIR``.
        fd: standard output once more, to be written; -1 before `create` and after `publish` or `remove`.

    Raises:
        InvalidSetting: from the constructor, if it is a terminal.
    """

    destination = b"standard output"
    is_file = False

    def __init__(self) -> None:
        if os.isatty(_STDOUT):
            raise InvalidSetting("-", "an archive is not for a terminal, redirect the output or name a file")
        self.spool_directory = os.fsencode(tempfile.gettempdir())
        self.fd = -1

    def read_marker(self) -> None:
        """Nothing is there before."""

    def create(self, _keep_out: Sequence[str] = ()) -> None:
        """Opens it.

        Raises:
            OutputError: it is closed.
        """
        if sys.__stdout__ is None:  # by now its number may be that of something else
            raise OutputError(self.destination.decode(), "it is closed", errno.EBADF)
        with output_errors(self.destination):
            if stat.S_ISFIFO(os.fstat(_STDOUT).st_mode):
                # who does not read must not keep us from ending; the flag is this descriptor's own
                with contextlib.suppress(OSError):  # of somebody else's pipe: then writing blocks
                    self.fd = os.open(f"/proc/self/fd/{_STDOUT}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if self.fd < 0:
                self.fd = os.dup(_STDOUT)

    def open_spool(self) -> int:
        """Opens a file without a name, to be read and written; the caller closes it.

        Raises:
            OutputError: the system refuses.
        """
        with output_errors(self.spool_directory):
            return open_spool(self.spool_directory)

    def publish(self, sync: bool, _label: Label | None = None) -> None:
        """Closes it.

        Args:
            sync: wait until a file is on its disk.

        Raises:
            OutputError: the system could not store it.
        """
        with output_errors(self.destination):
            if sync and stat.S_ISREG(os.fstat(self.fd).st_mode):
                os.fsync(self.fd)
            fd, self.fd = self.fd, -1
            os.close(fd)

    def remove(self) -> None:
        """Closes it. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
