"""System calls of a pull, recorded and failed by strace."""

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
    """The n-th system call of its name on a thread; strace counts each thread separately.

    Attributes:
        name: name of the system call.
        number: ordinal from 1, counted among the calls on ``path`` if it is set.
        path: path below the folder of a trial; it separates a pull's files from the many files of the interpreter.
    """

    name: str
    number: int
    path: str = ""

    def failing(self, log: Path, where: Path, how: str) -> tuple[str, ...]:
        """Return the strace command that fails this call on the first thread to reach it."""
        path = ("-P", str(where / self.path)) if self.path else ()
        inject = f"--inject={self.name}:{how}:when={self.number}"
        return (*_STRACE, *path, "-o", str(log), "-e", f"trace={self.name}", inject)


def recording(log: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the strace command that records calls."""
    known = ",".join(f"?{name}" for name in names)  # some architectures lack some calls
    return (*_STRACE, "-o", str(log), "-e", f"trace={known}")


def calls_on(log: Path, where: Path) -> dict[str, list[Call]]:
    """Return the recorded calls on files below a folder, by name."""
    counts: Counter[tuple[str, ...]] = Counter()
    opened = re.compile(
        rf'"{re.escape(str(where))}/((?:[^"/.][^"/]*/)*[^"/.][^"/]*)"'
    )  # without hidden names, which are random
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
    """Pick a call; every name has the same probability."""
    return choose.choice(calls[choose.choice(sorted(calls))])


def hit(log: Path, how: str) -> list[str]:
    """Return the lines of the failed calls."""
    return [line for line in log.read_text(errors="replace").splitlines() if how in line]
