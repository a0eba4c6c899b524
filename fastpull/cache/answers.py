"""What registries have just said that tags mean: for the other processes of the same job.

::

    <root>/v1/answers/<hash of the question>    a line of JSON: the answer to each job that asked lately

Only who runs as the same user takes an answer: whoever may not ask a registry learns nothing here. How old one is goes
by the filesystem's own time. Every method blocks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastpull.cache import line
from fastpull.cache.files import local_errors
from fastpull.cache.fstime import filesystem_time
from fastpull.errors import InvalidDigest
from fastpull.oci.digest import Digest

if TYPE_CHECKING:
    from fastpull.cache.files import Files
    from fastpull.cache.locks import FileLock

MAX_ANSWER_SECONDS = 120.0
"""An answer that is older is not used: by then all nodes of a job step have started."""

_MAX_JOBS = 16


@dataclass(frozen=True, slots=True)
class Question:
    """What one user's processes of a job ask together.

    Attributes:
        job: what they have in common.
        subject: reference, platform, and whatever else decides on the answer.
    """

    job: str
    subject: tuple[str, ...]

    @property
    def name(self) -> str:
        """Of the file with the answers; it has those of other jobs, too."""
        return Digest.of("\0".join((str(os.geteuid()), *self.subject)).encode()).encoded


class Answers:
    """The answers of a cache.

    Args:
        files: of the cache.

    Raises:
        CacheError: from every method, where the filesystem refuses.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._folder = os.path.join(files.root, "answers")

    def lock(self, question: Question) -> FileLock:
        """The lock that whoever asks holds."""
        return self._files.lock(f"answer-{question.name}")

    def find(self, question: Question) -> Digest | None:
        """What was answered to this job; None if it did not ask, or long ago."""
        value = self._read(question).get(question.job)
        return None if value is None else Digest.parse(value["digest"])

    def keep(self, question: Question, digest: Digest) -> None:
        """Tells an answer to the other processes of the job; to be called by who holds the lock."""
        known = {job: value for job, value in self._read(question).items() if job != question.job}
        latest = dict(list(known.items())[1 - _MAX_JOBS :])
        latest[question.job] = {"digest": str(digest), "time": filesystem_time(self._folder)}
        self._files.write(self._path(question), line.to_bytes(latest), mode=0o600)

    def remove_old(self) -> None:
        """Removes the files of which nothing can be used any more."""
        with local_errors():
            now = filesystem_time(self._folder)
        for _, name, state in self._files.listed("answers", nested=False):
            if now - state.st_mtime > MAX_ANSWER_SECONDS:
                self._files.unlink(os.path.join(self._folder, name))

    def _read(self, question: Question) -> dict[str, dict[str, Any]]:
        """The answers that count, by job."""
        with local_errors():
            try:
                with open(self._path(question), "rb") as file:
                    if os.fstat(file.fileno()).st_uid != os.geteuid():
                        return {}
                    content = file.read()
            except (FileNotFoundError, PermissionError):
                return {}
            now = filesystem_time(self._folder)
        try:
            answers = dict(line.from_bytes(content))
            for value in answers.values():
                Digest.parse(value["digest"])
            return {job: one for job, one in answers.items() if abs(now - one["time"]) <= MAX_ANSWER_SECONDS}
        except (ValueError, KeyError, TypeError, InvalidDigest):
            return {}

    def _path(self, question: Question) -> str:
        return os.path.join(self._folder, question.name)
