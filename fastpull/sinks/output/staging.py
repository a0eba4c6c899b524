"""Staging: a private name beside the destination, under which an output is made and from which it is published."""

from __future__ import annotations

import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastpull.errors import OutputExists
from fastpull.native import exchange
from fastpull.sinks.output.destination import Destination, lock_staging
from fastpull.sinks.output.errors import output_errors
from fastpull.sinks.output.replace import ExistingOutput, inspect
from fastpull.sinks.output.walk import OutputPlace

if TYPE_CHECKING:
    from fastpull.sinks.output.marker import Marker


class Staging(ABC):
    """A directory or file ``.NAME.fastpull-…`` beside the destination, locked while its process lives.

    The destination is checked when the staging is created and again right before it is published: it may change in
    between. Subclasses create, publish and remove one kind of staging.

    Args:
        destination: path of the output.
        force: whether an existing output is replaced.

    Attributes:
        destination: path of the output; after `create` without symbolic links.
        shown: path of the output as the caller gave it, for messages.
        fd: open staging, which holds the lock; -1 before `create` and after `publish` or `remove`.
        parent_fd: open directory of the staging and of the destination; likewise.
    """

    def __init__(self, destination: str | os.PathLike[str], *, force: bool) -> None:
        self._target = Destination(destination)
        self.destination, self.shown = self._target.path, self._target.shown
        self._force = force
        self._keep_out: Sequence[str] = ()
        self._place = OutputPlace(-1, b"", b"")
        self._staged = b""
        self.fd = self.parent_fd = -1

    def read_marker(self) -> Marker | None:
        """Return the marker of the existing output; None if it has no valid one or is to be replaced."""
        return None if self._force else self._target.read_marker(self._is_kind)

    def create(self, keep_out: Sequence[str] = ()) -> None:
        """Create the staging, and remove stale ones that killed pulls to the same destination have left.

        Args:
            keep_out: directories that the output must not replace, contain or be in.

        Raises:
            OutputExists: the destination exists and must not be replaced.
            OutputError: the destination cannot be written.
        """
        with output_errors(self.destination):
            self._keep_out, self._place = keep_out, self._target.open()
            self.parent_fd, self.destination = self._place.directory_fd, self._place.path
            self._check_destination()
            self._target.remove_stale(self.parent_fd)
            while not self._create_locked():
                pass
            self._prepare()

    def remove(self) -> None:
        """Remove the staging with its content, if it has not been published. May be called twice."""
        try:
            if self._staged:
                staged, self._staged = self._staged, b""
                with output_errors(self.destination):
                    self._remove_staged(staged)
        finally:
            for fd in (self.fd, self.parent_fd):
                if fd >= 0:
                    os.close(fd)
            self.fd = self.parent_fd = -1

    @staticmethod
    @abstractmethod
    def _is_kind(mode: int) -> bool:
        """Return whether a mode is that of the kind of output that is made."""

    @abstractmethod
    def _check(self, found: ExistingOutput) -> None:
        """Check that the output may replace the existing one."""

    @abstractmethod
    def _create_staged(self, name: bytes) -> int:
        """Create the staging under a name and return its descriptor."""

    @abstractmethod
    def _prepare(self) -> None:
        """Prepare the locked staging for use."""

    @abstractmethod
    def _remove_staged(self, name: bytes) -> None:
        """Remove the staging with its content."""

    @abstractmethod
    def _rename(self) -> None:
        """Give the output its name, if the destination may still be replaced."""

    @abstractmethod
    def _restore(self) -> None:
        """Give the name back to the previous output, or remove it if there was none."""

    def _check_destination(self) -> None:
        self._check(inspect(self._place, self._keep_out))

    def _create_locked(self) -> bool:
        """Create and lock the staging; return False if another pull has removed it as stale in between."""
        name = self._target.staging_name()
        fd = self._create_staged(name)
        if not lock_staging(fd):
            os.close(fd)
            return False
        self.fd, self._staged = fd, name
        return True

    def _publish_name(self, *, sync: bool) -> None:
        """Give the output its name; restore the previous output if the name cannot be synchronised to the disk."""
        self._rename()
        if sync:
            try:
                os.fsync(self.parent_fd)
            except OSError:
                with contextlib.suppress(OSError):
                    self._restore()
                raise

    def _exchange(self, staged_fd: int, staged_name: bytes) -> int:
        """Exchange a staged name with the destination atomically; return 0 or an errno."""
        return exchange(staged_fd, staged_name, self.parent_fd, self._place.name)

    def _taken(self, number: int = errno.EEXIST) -> OutputExists:
        """Return the error for a destination that another process has created during the pull."""
        return OutputExists(
            self.shown,
            "another process has just created this path",
            number,
            "Choose another path, or check what is there and try again",
        )
