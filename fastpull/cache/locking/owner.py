"""Who holds a lock: what stands in its file, so that whoever wants it can see whether they are still there."""

from __future__ import annotations

import os
import secrets
from dataclasses import asdict, dataclass
from functools import cache
from typing import Self

from fastpull.cache import checksummed_json
from fastpull.cache.blob_metadata import boot_id

_ENDED = ("Z", "X")  # proc_pid_stat(5): a zombie does nothing any more


@dataclass(frozen=True, slots=True)
class Owner:
    """A holder of a lock.

    Attributes:
        nonce: of nobody else, and of no other lock.
        host: for people.
        boot: which boot of which host.
        pids: the namespace in which its number means something.
        pid: its number.
        started: when it was started, in the kernel's ticks; another process may get its number later.
        has_flock: it holds a ``flock`` on the file, too, which ends with it.
        is_suspect: it took over from somebody who may not have ended.
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
        """This process, with a new nonce."""
        host, pids, pid = os.uname().nodename, _namespace(), os.getpid()
        return cls(secrets.token_hex(16), host, boot_id(), pids, pid, _started(pid) or 0, has_flock, is_suspect)

    @property
    def is_here(self) -> bool:
        """Whether it runs, or ran, under this boot of this host."""
        return self.boot == boot_id()

    def has_ended(self) -> bool:
        """Whether it is known to have ended: of other hosts, and of other namespaces, nothing is."""
        return self.is_here and self.pids == _namespace() and _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    def to_bytes(self) -> bytes:
        """The owner as a file."""
        return checksummed_json.to_bytes(asdict(self))

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """Reads a file; None for anything that is not one."""
        try:
            owner = cls(**checksummed_json.from_bytes(content))
        except (ValueError, TypeError):
            return None
        kinds = (str, str, str, str, int, int, bool, bool)
        sound = all(isinstance(got, kind) for got, kind in zip(asdict(owner).values(), kinds, strict=True))
        return owner if sound else None


def _started(pid: int) -> int | None:
    """When a process was started; None if it has ended. Spec: proc_pid_stat(5), fields 3 and 22."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0].decode() in _ENDED else int(fields[19])


@cache
def _namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
