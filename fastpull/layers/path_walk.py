"""The walk of a path: its components in order, with symbolic links replaced by their targets."""

from __future__ import annotations

from collections.abc import Iterator

MAX_SYMLINKS = 40
"""Symbolic links on the way to one path; the limit of the kernel, see path_resolution(7)."""


class TooManySymlinks(Exception):
    """A path has more than `MAX_SYMLINKS` symbolic links, or they form a loop."""


class PathWalk:
    """The components of a path, without empty ones and ``.``.

    The caller looks up each component and handles ``..``, since image trees and the host's filesystem have different
    rules for it. `follow` puts the target of a symbolic link before the components that are left.

    Args:
        path: path with or without a leading slash.
    """

    __slots__ = ("_links", "_pending")

    def __init__(self, path: bytes) -> None:
        self._pending = _reversed_components(path)
        self._links = 0

    def __iter__(self) -> Iterator[bytes]:
        while self._pending:
            yield self._pending.pop()

    @property
    def is_last(self) -> bool:
        """Whether the component at hand is the last one."""
        return not self._pending

    def follow(self, target: bytes) -> bool:
        """Continue with the target of a symbolic link.

        Args:
            target: target of the link that is the component at hand.

        Returns:
            Whether the target is absolute, so that the walk restarts at the root.

        Raises:
            TooManySymlinks: the limit is exceeded.
        """
        self._links += 1
        if self._links > MAX_SYMLINKS:
            raise TooManySymlinks
        self._pending += _reversed_components(target)
        return target.startswith(b"/")


def _reversed_components(path: bytes) -> list[bytes]:
    return [part for part in reversed(path.split(b"/")) if part not in (b"", b".")]
