"""Records of the staging directories of this user's pulls, for finding what a killed pull left.

::

    <root>/v1/stagings/[user-<number>/]<number>    a line of JSON: the process, and the place of its staging

The next pull to the same destination removes such stagings, too. The records serve destinations without a next pull.
Every method blocks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fastpull.cache import checksummed_json
from fastpull.cache.blob_metadata import boot_id
from fastpull.cache.directory import CacheDirectory
from fastpull.cache.errors import cache_errors
from fastpull.cache.locking.owner import Owner
from fastpull.errors import CacheError
from fastpull.native import remove_tree

if TYPE_CHECKING:
    from fastpull.cache.files import CacheFiles

STAGING_MARK = b".fastpull-"
"""Part of the name of every staging, between the name of the destination and a number."""

_DIRECTORY = "stagings"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_RECORD_SECONDS = 30 * 86400.0
"""Age at which a record of another host is dropped; nothing tells whether its process has ended."""


class StagingRecords:
    """The staging records of a cache.

    Args:
        files: files of the cache.
    """

    def __init__(self, files: CacheFiles) -> None:
        self._files = files

    def add(self, directory: bytes, prefix: bytes) -> str | None:
        """Record the place of a staging of this process; return None if the cache is not writable.

        Args:
            directory: path of the parent directory, without symbolic links.
            prefix: prefix of the staging's name.

        Returns:
            The path of the record, for `remove`.
        """
        owner = asdict(Owner.me(has_flock=False, is_suspect=False))
        path = os.path.join(self._files.user_directory(_DIRECTORY), secrets.token_hex(16))
        value = {"owner": owner, "folder": directory.hex(), "prefix": prefix.hex()}
        try:
            self._files.write(path, checksummed_json.to_bytes(value), mode=0o600)
        except CacheError:
            return None
        return path

    def remove(self, path: str) -> None:
        """Remove a record whose staging is gone."""
        with contextlib.suppress(CacheError):
            self._files.unlink(path)

    def remove_dead(self) -> list[str]:
        """Remove the stagings of this user's pulls that are known to have ended, and return their paths."""
        removed = list[str]()
        for path, value, age in self._own():
            owner = _owner(value)
            if owner is None or age > _MAX_RECORD_SECONDS:
                self.remove(path)
            elif owner.has_ended() or (owner.host == os.uname().nodename and owner.boot != boot_id()):
                removed += _remove_stagings(bytes.fromhex(value["folder"]), bytes.fromhex(value["prefix"]))
                self.remove(path)
        return removed

    def _own(self) -> Iterator[tuple[str, Any, float]]:
        """Iterate over this user's records as (path, value, age); the value of a damaged record is None."""
        directory = self._files.user_directory(_DIRECTORY)
        for name in self._files.names(*os.path.relpath(directory, self._files.root).split(os.sep)):
            path = os.path.join(directory, name)
            with contextlib.suppress(CacheError):  # another user owns it
                found = self._files.read_with_state(path)
                if found is not None and found[1].st_uid == os.geteuid():
                    value = None
                    with contextlib.suppress(ValueError):
                        value = checksummed_json.from_bytes(found[0])
                    yield path, value, time.time() - found[1].st_mtime


def remove_stale(directory_fd: int, pattern: re.Pattern[bytes]) -> list[bytes]:
    """Remove this user's stagings whose process has ended, and return their names.

    Stagings that cannot be removed stay.

    Args:
        directory_fd: descriptor of the parent directory, open for listing.
        pattern: pattern of the names.
    """
    removed = list[bytes]()
    for name in map(os.fsencode, os.listdir(directory_fd)):
        if pattern.fullmatch(name):
            with contextlib.suppress(OSError):
                fd = os.open(name, _READ, dir_fd=directory_fd)
                try:
                    if os.fstat(fd).st_uid == os.geteuid():
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        if remove_tree(directory_fd, name) == 0:
                            removed.append(name)
                finally:
                    os.close(fd)
    return removed


def staging_pattern(prefix: bytes) -> re.Pattern[bytes]:
    """Return the pattern of staging names with a prefix."""
    return re.compile(re.escape(prefix) + rb"[0-9a-f]{8}", re.DOTALL)


def _owner(value: Any) -> Owner | None:
    """Return the owner of a record; None if the record is damaged."""
    try:
        owner = Owner.from_bytes(checksummed_json.to_bytes(value["owner"]))
        bytes.fromhex(value["folder"])
        prefix = bytes.fromhex(value["prefix"])
    except (ValueError, KeyError, TypeError):
        return None
    return owner if prefix.startswith(b".") and prefix.endswith(STAGING_MARK) and b"/" not in prefix else None


def _remove_stagings(directory: bytes, prefix: bytes) -> list[str]:
    try:
        with cache_errors(), contextlib.ExitStack() as stack:
            opened = stack.enter_context(CacheDirectory.at("/"))
            for name in os.fsdecode(directory).split("/"):
                if name:  # the recorded path has no symbolic links
                    opened = stack.enter_context(opened.subdirectory(name))
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=opened.fd)
            stack.callback(os.close, fd)
            return [os.fsdecode(os.path.join(directory, name)) for name in remove_stale(fd, staging_pattern(prefix))]
    except (CacheError, ValueError):
        return []  # the directory is gone or replaced
