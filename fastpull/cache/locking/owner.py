"""The owner of a lock: the content of a lock file, which tells other processes whether the owner is still alive."""

from __future__ import annotations

import os
import secrets
from dataclasses import asdict, dataclass
from functools import cache
from typing import Self

from fastpull.cache import checksummed_json
from fastpull.cache.blob_metadata import boot_id

_ENDED = ("Z", "X")  # proc_pid_stat(5): a zombie executes nothing


@dataclass(frozen=True, slots=True)
class Owner:
    """An owner of a lock.

    Attributes:
        nonce: random value, unique to this acquisition.
        host: node name, for messages.
        boot: boot ID of the host.
        pids: PID namespace of the process.
        pid: process ID.
        started: start time in kernel ticks; distinguishes a later process with the same ID.
        has_flock: whether the owner also holds a ``flock``, which ends with the process.
        is_suspect: whether the lock was taken over from an owner that may still be alive.
    """

    nonce: str
    host: str
    boot: str
    pids: str
    pid: int
    started: int
    has_flock: bool
    is_suspect: bool

    @classmethod
    def me(cls, *, has_flock: bool, is_suspect: bool) -> Self:
        """Return this process as an owner, with a new nonce."""
        host, pids, pid = os.uname().nodename, _namespace(), os.getpid()
        return cls(secrets.token_hex(16), host, boot_id(), pids, pid, _started(pid) or 0, has_flock, is_suspect)

    @property
    def is_here(self) -> bool:
        """Whether the owner belongs to the current boot of this host."""
        return self.boot == boot_id()

    def has_ended(self) -> bool:
        """Return whether the owner is known to have ended. Nothing is known of other hosts and other PID namespaces."""
        return self.is_here and self.pids == _namespace() and _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def to_bytes(self) -> bytes:
        """Return the content of the lock file."""
        return checksummed_json.to_bytes(asdict(self))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """Parse a lock file; return None if it is not one."""
        try:
            owner = cls(**checksummed_json.from_bytes(content))
        except (ValueError, TypeError):
            return None
        kinds = (str, str, str, str, int, int, bool, bool)
        sound = all(isinstance(got, kind) for got, kind in zip(asdict(owner).values(), kinds, strict=True))
        return owner if sound else None


def _started(pid: int) -> int | None:
    """Return the start time of a process; None if it has ended. Spec: proc_pid_stat(5), fields 3 and 22."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0].decode() in _ENDED else int(fields[19])


@cache
def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
