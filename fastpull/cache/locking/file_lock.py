"""Locks shared by processes on many nodes.

A lock is a file that names its owner. Acquiring the lock creates the file, and releasing the lock removes it. A
heartbeat touches the file every few seconds. Where the filesystem has ``flock``, the owner holds that, too: it reveals
the death of the owner at once to processes on the same node. The reach of a ``flock`` between nodes is unknown. So
processes on other nodes treat an owner as dead when its file has not changed for `LEASE_SECONDS`, measured by the
observer's own clock: clocks are never compared. A delayed owner that resumes finds another owner in the file, see
`FileLock.check`.

::

    no file ─ draft, named, flock ─ link ──> acquired
    a file ─ flock refused ──> taken
           ├ of this boot, flock granted or process gone ─┐
           ├ untouched for LEASE_SECONDS, as observed ────┴─ rename away ─ still the same? ──> no file
           └ else ──> taken
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum, auto

from fastpull.cache.directory import CacheDirectory, NotAFile
from fastpull.cache.errors import cache_errors
from fastpull.cache.locking.heartbeat import HEARTBEAT
from fastpull.cache.locking.owner import Owner
from fastpull.concurrency.threads import in_thread
from fastpull.concurrency.writes import flush
from fastpull.errors import CacheError, LockLost

_log = logging.getLogger(__name__)

LEASE_SECONDS = 15.0
"""Silence after which an owner on another node counts as dead: five heartbeats."""

_ABANDONED_SECONDS = 86400.0
"""Age, by the filesystem's clock, of an abandoned lock at first sight. Clocks of a cluster never differ by so much."""

_NO_LOCK_ERRNOS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_NO_LINK_ERRNOS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_MAX_SIZE = 4096
_MAX_ATTEMPTS = 100


def pauses() -> Iterator[float]:
    """Yield growing pauses between two attempts, in seconds, because many nodes may wait for one shared filesystem."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311  # not for secrets
        pause = min(1.5 * pause, _LONGEST_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class _Observation:
    """An observed state of a lock file. While nothing of it changes, the owner gave no sign of life."""

    content: bytes
    inode: int
    mtime_ns: int


class _OwnerState(Enum):
    """The state of an owner, as far as it is known."""

    ALIVE = auto()
    ENDED = auto()
    SILENT = auto()  # presumed dead after a long silence; may resume


class FileLock:
    """An exclusive lock: a file that exists while the lock is held, or after its owner died.

    It excludes tasks of one process as well as processes and nodes. The death of the owner releases it: at once on the
    same node, after `LEASE_SECONDS` for other nodes.

    Args:
        path: path of the lock file, in an existing directory.
        mode: mode of the file, independent of the umask; waiting for the lock needs write permission.
        method: ``auto``: as described above. ``flock``: rely on ``flock`` between all nodes, so every node notices a
            death at once. ``lease``: do not use ``flock``.
        open_directory: opens the directory of the lock file; a true argument creates it if missing. By default the
            existing directory of ``path``.

    Attributes:
        is_suspect: while the lock is held, whether an earlier owner may still be alive and write to its open files.
    """

    def __init__(
        self,
        path: str,
        mode: int = 0o600,
        method: str = "auto",
        open_directory: Callable[[bool], CacheDirectory] | None = None,
    ) -> None:
        self.path = path
        self._name = os.path.basename(path)
        self._open_directory = open_directory or (lambda _: CacheDirectory.at(os.path.dirname(path) or "."))
        self.is_suspect = False
        self._mode = mode
        self._method = method
        self._fd = -1
        self._owner: Owner | None = None
        self._observed: _Observation | None = None
        self._observed_since = 0.0

    def __repr__(self) -> str:
        state = "held after a suspect owner" if self.held and self.is_suspect else "held" if self.held else "not held"
        return f"<FileLock {self.path}: {state}>"

    @property
    def held(self) -> bool:
        """Whether this object has acquired the lock and not released it. `check` tells whether that still counts."""
        return self._fd >= 0

    @property
    def exists(self) -> bool:
        """Whether the lock file exists: the lock is held, or its owner died."""
        with cache_errors(self.path):
            try:
                with self._open_directory(False) as directory:
                    return directory.lookup(self._name) is not None
            except FileNotFoundError:
                return False

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free, and return whether it is held.

        Raises:
            CacheError: the lock file cannot be created; or ``flock`` was demanded, and the filesystem has no working
                locks.
        """
        with cache_errors(self.path), self._open_directory(True) as directory:
            is_acquired = self._try_acquire(directory)
        if is_acquired:
            _log.debug("acquired lock %s", self.path)
        return is_acquired

    async def try_acquire_async(self, executor: Executor | None = None) -> bool:
        """Run `try_acquire` on a thread, so that a slow filesystem does not block the event loop."""
        stopped = threading.Event()

        def try_acquire() -> bool:
            is_acquired = self.try_acquire()
            if is_acquired and stopped.is_set():
                self.release()
            return self.held

        def undo(is_acquired: bool) -> None:
            if is_acquired:
                self.release()

        return await in_thread(executor, try_acquire, abort=stopped.set, dispose=undo)

    async def acquire(self, executor: Executor | None = None) -> None:
        """Wait for the lock without blocking the event loop. File operations run on threads of ``executor``."""
        for number, pause in enumerate(pauses()):
            if await self.try_acquire_async(executor):
                return
            if number == 0:
                _log.debug("waiting for lock %s", self.path)
            await asyncio.sleep(pause)

    async def release_async(self, executor: Executor | None = None) -> None:
        """Run `release` on a thread."""
        if self.held:
            await in_thread(executor, self.release)

    def check(self) -> None:
        """Check that the lock is still held. Call it before publishing anything made under the lock.

        Raises:
            LockLost: another process has taken over after a long silence of this one, or the lock file is gone.
            CacheError: the filesystem gives no answer.
        """
        with cache_errors(self.path):
            try:
                with self._open_directory(False) as directory:
                    is_owner = self._is_owner(directory)
            except FileNotFoundError:
                is_owner = False
        if not is_owner:
            _log.debug("lost lock %s", self.path)
            reason = "another process has taken over because this one gave no sign of life, or the cache was emptied"
            raise LockLost(self.path, reason)
        with contextlib.suppress(OSError):
            os.utime(self._fd)

    def release(self) -> None:
        """Release the lock, and remove its file unless another owner has it. May be called twice."""
        if self._fd >= 0:
            HEARTBEAT.remove(self._fd)
            with contextlib.suppress(OSError), self._open_directory(False) as directory:
                if self._is_owner(directory):
                    directory.unlink(self._name)
            with contextlib.suppress(OSError):  # a thread may hold a duplicate descriptor for a moment
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1
            _log.debug("released lock %s", self.path)

    # --- acquiring

    def _try_acquire(self, directory: CacheDirectory) -> bool:
        is_suspect = False
        for _ in range(_MAX_ATTEMPTS):
            try:
                fd = directory.open(self._name, os.O_RDWR)
            except FileNotFoundError:
                if self._create(directory, is_suspect):
                    return True
                continue
            except PermissionError:
                return False  # another user has just created it, and not set its mode yet
            try:
                observed = _observe(fd)
                owner = Owner.from_bytes(observed.content)
                state = self._state_of(directory, owner, observed, fd)
                if state is _OwnerState.ALIVE or not self._remove(directory, observed):
                    return False
                is_suspect = state is _OwnerState.SILENT or (owner is not None and owner.is_suspect)
            finally:
                os.close(fd)
        return False

    def _create(self, directory: CacheDirectory, is_suspect: bool) -> bool:
        """Create the file with its content in one step; return False if another process was faster."""
        draft = _unique_name()
        fd = directory.create(draft)
        try:
            os.fchmod(fd, self._mode)
            self._write_owner(fd, is_suspect)
            try:
                directory.link(draft, self._name)
            except FileExistsError:
                is_acquired = False
            except OSError as error:
                if error.errno not in _NO_LINK_ERRNOS:
                    raise
                is_acquired = self._create_in_place(directory, is_suspect)
                os.close(fd)
                fd = -1
            else:
                self._fd, fd = fd, -1
                is_acquired = True
        finally:
            if fd >= 0:
                os.close(fd)
            directory.unlink(draft)
        if is_acquired:
            self.is_suspect = is_suspect
            HEARTBEAT.add(self._fd)
        return is_acquired

    def _create_in_place(self, directory: CacheDirectory, is_suspect: bool) -> bool:
        """Create the file where hard links do not work.

        It names no owner for a moment, during which other processes wait.
        """
        try:
            fd = directory.create(self._name)
        except FileExistsError:
            return False
        os.fchmod(fd, self._mode)
        self._write_owner(fd, is_suspect)
        self._fd = fd
        return True

    def _write_owner(self, fd: int, is_suspect: bool) -> None:
        has_flock = self._method != "lease" and self._flock(fd) is True and self._flock_excludes(fd)
        self._owner = Owner.me(has_flock=has_flock, is_suspect=is_suspect)
        os.pwrite(fd, self._owner.to_bytes(), 0)
        flush(fd)

    def _state_of(self, directory: CacheDirectory, owner: Owner | None, observed: _Observation, fd: int) -> _OwnerState:
        is_first = self._observed is None
        if observed != self._observed:
            self._observed, self._observed_since = observed, time.monotonic()
        if self._method != "lease":
            given = self._flock(fd)
            if given is False:
                return _OwnerState.ALIVE
            if given and owner is not None and owner.has_flock and (owner.is_here or self._method == "flock"):
                return _OwnerState.ENDED
        if owner is not None and owner.has_ended():
            return _OwnerState.ENDED
        silence = directory.time() - observed.mtime_ns / 1e9 if is_first else 0.0
        if time.monotonic() - self._observed_since >= LEASE_SECONDS or silence > _ABANDONED_SECONDS:
            return _OwnerState.SILENT
        return _OwnerState.ALIVE

    def _remove(self, directory: CacheDirectory, dead: _Observation) -> bool:
        """Remove the file of a dead owner. Return False, and restore the file, if it has changed owners meanwhile."""
        private = _unique_name()
        try:
            directory.rename(self._name, directory, private)
        except FileNotFoundError:
            return True
        try:
            is_dead = False
            with contextlib.suppress(NotAFile):
                fd = directory.open(private)
                try:
                    is_dead = _observe(fd) == dead
                finally:
                    os.close(fd)
            if not is_dead:
                with contextlib.suppress(OSError):  # a third process has acquired it; the second one notices in `check`
                    directory.link(private, self._name)
        finally:
            directory.remove(private)
        if is_dead:
            _log.debug("removed lock %s of a dead owner", self.path)
        return is_dead

    def _is_owner(self, directory: CacheDirectory) -> bool:
        try:
            fd = directory.open(self._name)  # an open asks the server; a stat may answer from a cache
        except (FileNotFoundError, NotAFile):
            return False
        try:
            owner = Owner.from_bytes(_observe(fd).content)
        finally:
            os.close(fd)
        return owner is not None and owner == self._owner

    # --- flock

    def _flock(self, fd: int) -> bool | None:
        """Return whether ``flock`` is granted; None if the filesystem has none."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            if error.errno not in _NO_LOCK_ERRNOS:
                raise
            if self._method == "flock":
                raise CacheError(self.path, "this filesystem has no locks", errno.ENOLCK) from error
            return None
        return True

    def _flock_excludes(self, held: int) -> bool:
        """Return whether a second ``flock`` is refused; some filesystems grant every one."""
        other = os.open(f"/proc/self/fd/{held}", os.O_RDWR | os.O_CLOEXEC)
        try:
            excludes = self._flock(other) is False
        finally:
            os.close(other)
        if not excludes and self._method == "flock":
            raise CacheError(self.path, "this filesystem grants the same lock twice", errno.ENOLCK)
        return excludes


def has_dead_owner(directory: CacheDirectory, name: str) -> bool:
    """Return whether a lock file, or the draft of one, names an owner that is known to have ended."""
    try:
        found = directory.read(name, _MAX_SIZE)
    except OSError:
        return False  # another user owns it
    owner = Owner.from_bytes(found[0]) if found is not None else None
    return owner is not None and owner.has_ended()


def _unique_name() -> str:
    """Return a random hidden name."""
    return f".{secrets.token_hex(16)}"


def _observe(fd: int) -> _Observation:
    state = os.fstat(fd)
    return _Observation(os.pread(fd, _MAX_SIZE, 0), state.st_ino, state.st_mtime_ns)
