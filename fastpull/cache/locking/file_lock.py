"""Locks that processes of many nodes share.

A lock is a file that names its owner, made by whoever gets the lock and removed by whoever gives it back. Its owner
touches it every few seconds. Where the filesystem has ``flock`` the owner holds that, too: it tells those on the same
node at once when the owner has died. Nobody else can know how far a ``flock`` reaches, so that on another node an owner
counts as dead when its file has not changed for `LEASE_SECONDS`, by the clock of whoever watches: clocks are never
compared. An owner that comes back after that finds somebody else's name in the file, see `FileLock.check`.

::

    no file ─ draft, named, flock ─ link ──> ours
    a file ─ flock refused ──> theirs
           ├ of this boot, flock given or process gone ─┐
           ├ not touched for LEASE_SECONDS, as we saw ──┴─ rename away ─ still the same? ──> no file
           └ else ──> theirs
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import Enum, auto

from fastpull.cache.folder import CacheFolder, NotAFile
from fastpull.cache.locking.heartbeat import HEARTBEAT
from fastpull.cache.locking.owner import Owner
from fastpull.concurrency.threads import in_thread
from fastpull.concurrency.writes import flush
from fastpull.errors import CacheError, LockLost, from_os_error

LEASE_SECONDS = 15.0
"""After so long without a sign of life an owner on another node is taken to be dead: five beats."""

_ABANDONED_SECONDS = 86400.0
"""By the filesystem's own time, for those who look only once: no two clocks of a cluster differ by so much."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_MAX_SIZE = 4096
_TRIES = 100


def pauses() -> Iterator[float]:
    """How long to wait between two looks, in seconds: many nodes wait together for a shared filesystem."""
    pause = _FIRST_PAUSE_SECONDS
    while True:
        yield pause * random.uniform(0.5, 1.0)  # noqa: S311  # not for secrets
        pause = min(1.5 * pause, _LONGEST_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class _Look:
    """What was seen of a lock's file: as long as nothing of it changes, its owner gave no sign of life."""

    content: bytes
    inode: int
    mtime_ns: int


class _State(Enum):
    """What is known of an owner."""

    THERE = auto()
    ENDED = auto()
    SILENT = auto()  # for so long that it is taken to have ended, and may come back


class FileLock:
    """An exclusive lock: a file that exists only while somebody holds it, or has died with it.

    It excludes tasks of one process as well as processes and nodes. Death of the process releases it: on the same node
    at once, for other nodes after `LEASE_SECONDS`.

    Args:
        path: of the lock file; its directory exists.
        mode: of the file, whatever the umask: who may not write to it cannot wait for it.
        way: ``auto`` as above; ``flock`` believes that a ``flock`` holds between all nodes, so that a death is known
            to all at once; ``lease`` does without.
        open_folder: opens the folder of the lock file, and makes it if it is told to and it is missing; by default
            that of its path, which exists.

    Attributes:
        is_suspect: while it is held, whether somebody who had it before may not have ended, and may write to what they
            have open.
    """

    def __init__(
        self,
        path: str,
        mode: int = 0o600,
        way: str = "auto",
        open_folder: Callable[[bool], CacheFolder] | None = None,
    ) -> None:
        self.path = path
        self._name = os.path.basename(path)
        self._open_folder = open_folder or (lambda _: CacheFolder.at(os.path.dirname(path) or "."))
        self.is_suspect = False
        self._mode = mode
        self._way = way
        self._fd = -1
        self._mine: Owner | None = None
        self._seen: _Look | None = None
        self._since = 0.0

    @property
    def held(self) -> bool:
        """Whether this object got the lock and has not given it back; `check` tells whether it still counts."""
        return self._fd >= 0

    @property
    def is_there(self) -> bool:
        """Whether somebody holds the lock, or has died with it."""
        try:
            with self._open_folder(False) as folder:
                return folder.lookup(self._name) is not None
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _cache_error(error, self.path) from error

    def try_acquire(self) -> bool:
        """Takes the lock if it is free.

        Raises:
            CacheError: the lock file cannot be made; or the filesystem has no locks, or none that exclude anybody, and
                the lock is to be a ``flock``.
        """
        try:
            with self._open_folder(True) as folder:
                return self._try_acquire(folder)
        except OSError as error:
            raise _cache_error(error, self.path) from error

    async def attempt(self, executor: Executor | None = None) -> bool:
        """Do what `try_acquire` does on a thread, so that a slow filesystem does not stop the event loop."""
        stopped = threading.Event()

        def attempt() -> bool:
            is_ours = self.try_acquire()
            if is_ours and stopped.is_set():
                self.release()
            return self.held

        def give_back(is_ours: bool) -> None:
            if is_ours:
                self.release()

        return await in_thread(executor, attempt, abort=stopped.set, dispose=give_back)

    async def acquire(self, executor: Executor | None = None) -> None:
        """Waits for the lock, without blocking the loop; the files are touched on threads of ``executor``."""
        for pause in pauses():
            if await self.attempt(executor):
                return
            await asyncio.sleep(pause)

    async def give_back(self, executor: Executor | None = None) -> None:
        """Do what `release` does on a thread."""
        if self.held:
            await in_thread(executor, self.release)

    def check(self) -> None:
        """Makes sure that the lock is still held, to be called before what was made under it is published.

        Raises:
            LockLost: this process gave no sign of life for so long that somebody else has it now; or its file is gone.
            CacheError: the filesystem does not tell.
        """
        try:
            with self._open_folder(False) as folder:
                is_mine = self._is_mine(folder)
        except FileNotFoundError:
            is_mine = False
        except OSError as error:
            raise _cache_error(error, self.path) from error
        if not is_mine:
            reason = (
                "somebody else has taken over, since this process stood still for too long, or has emptied the cache"
            )
            raise LockLost(self.path, reason)
        with contextlib.suppress(OSError):
            os.utime(self._fd)

    def release(self) -> None:
        """Gives the lock back and removes its file, unless somebody else has it. May be called twice."""
        if self._fd >= 0:
            HEARTBEAT.remove(self._fd)
            with contextlib.suppress(OSError), self._open_folder(False) as folder:
                if self._is_mine(folder):
                    folder.unlink(self._name)
            with contextlib.suppress(OSError):  # a thread may have another descriptor of the file for a moment
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1

    # --- getting it

    def _try_acquire(self, folder: CacheFolder) -> bool:
        is_suspect = False
        for _ in range(_TRIES):
            try:
                fd = folder.open(self._name, os.O_RDWR)
            except FileNotFoundError:
                if self._create(folder, is_suspect):
                    return True
                continue
            except PermissionError:
                return False  # another user's, who has not given it its mode yet
            try:
                look = _look(fd)
                owner = Owner.from_bytes(look.content)
                state = self._state_of(folder, owner, look, fd)
                if state is _State.THERE or not self._remove(folder, look):
                    return False
                is_suspect = state is _State.SILENT or (owner is not None and owner.is_suspect)
            finally:
                os.close(fd)
        return False

    def _create(self, folder: CacheFolder, is_suspect: bool) -> bool:
        """Makes the file with this owner in it, all at once; False if somebody was faster."""
        draft = _draft()
        fd = folder.create(draft)
        try:
            os.fchmod(fd, self._mode)
            self._name_owner(fd, is_suspect)
            try:
                folder.link(draft, self._name)
            except FileExistsError:
                is_ours = False
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                is_ours = self._create_in_place(folder, is_suspect)
                os.close(fd)
                fd = -1
            else:
                self._fd, fd = fd, -1
                is_ours = True
        finally:
            if fd >= 0:
                os.close(fd)
            folder.unlink(draft)
        if is_ours:
            self.is_suspect = is_suspect
            HEARTBEAT.add(self._fd)
        return is_ours

    def _create_in_place(self, folder: CacheFolder, is_suspect: bool) -> bool:
        """The same where files cannot have two names: for a moment nobody stands in it, and all others wait."""
        try:
            fd = folder.create(self._name)
        except FileExistsError:
            return False
        os.fchmod(fd, self._mode)
        self._name_owner(fd, is_suspect)
        self._fd = fd
        return True

    def _name_owner(self, fd: int, is_suspect: bool) -> None:
        has_flock = self._way != "lease" and self._flock(fd) is True and self._excludes(fd)
        self._mine = Owner.me(has_flock=has_flock, is_suspect=is_suspect)
        os.pwrite(fd, self._mine.to_bytes(), 0)
        flush(fd)

    def _state_of(self, folder: CacheFolder, owner: Owner | None, look: _Look, fd: int) -> _State:
        is_first = self._seen is None
        if look != self._seen:
            self._seen, self._since = look, time.monotonic()
        if self._way != "lease":
            given = self._flock(fd)
            if given is False:
                return _State.THERE
            if given and owner is not None and owner.has_flock and (owner.is_here or self._way == "flock"):
                return _State.ENDED
        if owner is not None and owner.has_ended():
            return _State.ENDED
        silence = folder.time() - look.mtime_ns / 1e9 if is_first else 0.0
        if time.monotonic() - self._since >= LEASE_SECONDS or silence > _ABANDONED_SECONDS:
            return _State.SILENT
        return _State.THERE

    def _remove(self, folder: CacheFolder, dead: _Look) -> bool:
        """Takes a dead owner's file away; False if it was somebody else's by then, who gets it back."""
        private = _draft()
        try:
            folder.rename(self._name, folder, private)
        except FileNotFoundError:
            return True
        try:
            is_dead = False
            with contextlib.suppress(NotAFile):
                fd = folder.open(private)
                try:
                    is_dead = _look(fd) == dead
                finally:
                    os.close(fd)
            if not is_dead:
                with contextlib.suppress(OSError):  # a third one has it: the second will notice
                    folder.link(private, self._name)
        finally:
            folder.remove(private)
        return is_dead

    def _is_mine(self, folder: CacheFolder) -> bool:
        try:
            fd = folder.open(self._name)  # asks the server, as a stat may not
        except (FileNotFoundError, NotAFile):
            return False
        try:
            owner = Owner.from_bytes(_look(fd).content)
        finally:
            os.close(fd)
        return owner is not None and owner == self._mine

    # --- flock

    def _flock(self, fd: int) -> bool | None:
        """Whether the lock is given; None if the filesystem has none."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            if error.errno not in _NO_LOCKS:
                raise
            if self._way == "flock":
                raise CacheError(self.path, "this filesystem has no locks", errno.ENOLCK) from error
            return None
        return True

    def _excludes(self, held: int) -> bool:
        """Some filesystems grant every lock to everybody."""
        other = os.open(f"/proc/self/fd/{held}", os.O_RDWR | os.O_CLOEXEC)
        try:
            excludes = self._flock(other) is False
        finally:
            os.close(other)
        if not excludes and self._way == "flock":
            raise CacheError(self.path, "this filesystem's locks exclude nobody", errno.ENOLCK)
        return excludes


def has_dead_owner(folder: CacheFolder, name: str) -> bool:
    """Whether a file names an owner who is known to have ended; so does a lock's draft that a kill has left."""
    try:
        found = folder.read(name, _MAX_SIZE)
    except OSError:
        return False  # another user's
    owner = Owner.from_bytes(found[0]) if found is not None else None
    return owner is not None and owner.has_ended()


def _cache_error(error: OSError, path: str) -> CacheError:
    return error if isinstance(error, CacheError) else from_os_error(CacheError, error, path)


def _draft() -> str:
    """A name that nobody else has."""
    return f".{secrets.token_hex(16)}"


def _look(fd: int) -> _Look:
    state = os.fstat(fd)
    return _Look(os.pread(fd, _MAX_SIZE, 0), state.st_ino, state.st_mtime_ns)
