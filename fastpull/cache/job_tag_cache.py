"""Manifest digests that a registry has just reported for tags, shared by the processes of a job.

::

    <root>/v1/answers/[user-<number>/]<hash of the query>    a line of JSON: one digest per job that asked recently

Only processes of the same user use them: a user without access to a registry learns nothing here. Ages are measured by
the filesystem's own time. Every method blocks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastpull.cache import checksummed_json
from fastpull.cache.errors import cache_errors
from fastpull.errors import CacheError, InvalidDigest
from fastpull.oci.digest import Digest

if TYPE_CHECKING:
    from fastpull.cache.files import CacheFiles
    from fastpull.cache.locking.file_lock import FileLock

MAX_TAG_SECONDS = 120.0
"""Maximum age of a usable digest: by then, all nodes of a job step have started."""

_MAX_JOBS = 16


@dataclass(frozen=True, slots=True)
class TagQuery:
    """A query that the processes of one user's job share.

    Attributes:
        job: ID of the job.
        subject: reference, platform and everything else that determines the digest.
    """

    job: str
    subject: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the file, which also holds the digests of other jobs."""
        return Digest.of("\0".join((str(os.geteuid()), *self.subject)).encode()).encoded


class JobTagCache:
    """The digests reported for tags, in a cache.

    Args:
        files: files of the cache.

    Raises:
        CacheError: from every method; the filesystem refuses.
    """

    def __init__(self, files: CacheFiles) -> None:
        self._files = files
        self._directory = files.user_directory("answers")

    def lock(self, query: TagQuery) -> FileLock:
        """Return the lock for querying the registry."""
        return self._files.lock(f"answer-{query.name}")

    def find(self, query: TagQuery) -> Digest | None:
        """Return the digest reported to this job; None if the job has no recent one."""
        value = self._read(query).get(query.job)
        return None if value is None else Digest.parse(value["digest"])

    def save(self, query: TagQuery, digest: Digest) -> None:
        """Store the digest for the other processes of the job. The caller holds the lock."""
        known = {job: value for job, value in self._read(query).items() if job != query.job}
        latest = dict(list(known.items())[1 - _MAX_JOBS :])
        latest[query.job] = {"digest": str(digest), "time": self._now()}
        self._files.write(self._path(query), checksummed_json.to_bytes(latest), mode=0o600)

    def remove_expired(self) -> None:
        """Remove the files without a usable digest."""
        now, root = self._now(), os.path.join(self._files.root, "answers")
        for nested in (False, True):
            for inner, name, state in self._files.entries("answers", nested=nested):
                if now - state.st_mtime > MAX_TAG_SECONDS and stat.S_ISREG(state.st_mode):
                    with contextlib.suppress(CacheError):  # another user owns it
                        self._files.unlink(os.path.join(root, inner, name))

    def _read(self, query: TagQuery) -> dict[str, dict[str, Any]]:
        """Return the usable digests, by job."""
        try:
            found = self._files.read_with_state(self._path(query))
        except CacheError as error:
            if error.errno == errno.EACCES:
                return {}
            raise
        if found is None or found[1].st_uid != os.geteuid():
            return {}
        now = self._now()
        try:
            tags = dict(checksummed_json.from_bytes(found[0]))
            for value in tags.values():
                Digest.parse(value["digest"])
            return {job: one for job, one in tags.items() if abs(now - one["time"]) <= MAX_TAG_SECONDS}
        except (ValueError, KeyError, TypeError, InvalidDigest):
            return {}

    def _now(self) -> float:
        """Return the time of the filesystem."""
        with cache_errors():
            return self._files.time("answers")

    def _path(self, query: TagQuery) -> str:
        return os.path.join(self._directory, query.name)
