"""System calls of a pull, and one of them that goes wrong, by strace."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"(?P<thread>\d+) +(?P<name>\w+)\((?P<rest>.*)")
_STRACE = ("strace", "-f", "--seccomp-bpf", "-qq", "-y", "-s", "0")


@dataclass(frozen=True, slots=True)
class Call:
    """A system call: the n-th of its name on a thread, which strace counts for each thread of its own.

    Attributes:
        name: of the system call.
        number: from 1, among those that concern ``path`` if there is one.
        path: within the directory of a trial. An interpreter opens so many files that only this tells ours.
    """

    name: str
    number: int
    path: str = ""

    def failing(self, log: Path, where: Path, how: str) -> tuple[str, ...]:
        """The command under which this call, on the first thread that gets so far, goes wrong."""
        path = ("-P", str(where / self.path)) if self.path else ()
        inject = f"--inject={self.name}:{how}:when={self.number}"
        return (*_STRACE, *path, "-o", str(log), "-e", f"trace={self.name}", inject)


def recording(log: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """The command under which calls are written down."""
    known = ",".join(f"?{name}" for name in names)  # not every machine has each
    return (*_STRACE, "-o", str(log), "-e", f"trace={known}")


def calls_on(log: Path, where: Path) -> dict[str, list[Call]]:
    """The calls of a record that concern files below a directory, by name."""
    counts: Counter[tuple[str, ...]] = Counter()
    opened = re.compile(rf'"{re.escape(str(where))}/((?:[^"/.][^"/]*/)*[^"/.][^"/]*)"')  # but no private names
    found: dict[str, list[Call]] = {}
    for line in log.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match:
            key: tuple[str, ...] = match["thread"], match["name"]
            counts[key] += 1
            if match["name"] == "openat":
                path = opened.search(match["rest"])
                if path:
                    counts[*key, path[1]] += 1
                    found.setdefault("openat", []).append(Call("openat", counts[*key, path[1]], path[1]))
            elif str(where) in match["rest"]:
                found.setdefault(match["name"], []).append(Call(match["name"], counts[key]))
    return found


def pick(choose: random.Random, calls: dict[str, list[Call]]) -> Call:
    """A call: of each name as likely as of any other."""
    return choose.choice(calls[choose.choice(sorted(calls))])


def hit(log: Path, how: str) -> list[str]:
    """The lines of the calls that went wrong."""
    return [line for line in log.read_text(errors="replace").splitlines() if how in line]
