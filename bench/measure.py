"""Measuring: processes by what the kernel says of them, and trees by what is in them."""

from __future__ import annotations

import os
import struct
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.programs import path_of
from tests.support.setup_errors import ProgramFailed

_OUTPUT_BLOCK = 512  # bytes, of which getrusage tells the number


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What processes took, one after the other.

    Attributes:
        wall_seconds: from the start of the first to the end of the last.
        cpu_seconds: user and system, of all their threads and children.
        max_rss: the most that one of them had in memory, in bytes. No less than what this process has, which the
            kernel counts in.
        written_bytes: pages of files that became dirty, by the kernel's count, wherever they were written to later;
            0 on tmpfs, for which it counts nothing.
    """

    wall_seconds: float
    cpu_seconds: float
    max_rss: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class OutputSize:
    """What was made.

    Attributes:
        entries: of a tree the names in it, of whatever type; of a squashfs file its inodes.
        bytes: of a tree the content of its files, of one with several names only once; of a squashfs file its size.
    """

    entries: int
    bytes: int


def measure(commands: Sequence[Sequence[str]], folder: str) -> ProcessUsage:
    """Runs programs one after the other, each as a process.

    Args:
        commands: names and arguments.
        folder: for what they say, and for their temporary files.

    Raises:
        ProgramFailed: one did not succeed; those after it were not started.
    """
    cpu_seconds, max_rss, written_bytes = 0.0, 0, 0
    log_path, environment = os.path.join(folder, "log"), {**os.environ, "TMPDIR": folder}
    with open(log_path, "wb") as log:
        started = time.monotonic()
        for command in commands:
            process = subprocess.Popen(
                [path_of(command[0]) or command[0], *command[1:]],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            try:
                _, status, usage = os.wait4(process.pid, 0)
            except BaseException:
                process.kill()
                process.wait()
                raise
            process.returncode = os.waitstatus_to_exitcode(status)
            cpu_seconds += usage.ru_utime + usage.ru_stime
            max_rss = max(max_rss, usage.ru_maxrss << 10)
            written_bytes += usage.ru_oublock * _OUTPUT_BLOCK
            if process.returncode:
                with open(log_path, encoding="utf-8", errors="backslashreplace") as said:
                    raise ProgramFailed(command[0], process.returncode, said.read())
        return ProcessUsage(time.monotonic() - started, cpu_seconds, max_rss, written_bytes)


def output_size(path: str) -> OutputSize:
    """Looks at a directory or at a squashfs file."""
    if os.path.isdir(path):
        return _tree_size(path)
    with open(path, "rb") as file:
        _magic, inodes = struct.unpack("<II", file.read(8))
    return OutputSize(inodes, os.stat(path).st_size)


def _tree_size(path: str) -> OutputSize:
    entries, size, seen, pending = 0, 0, set(), [path]
    while pending:
        with os.scandir(pending.pop()) as listing:
            for found in listing:
                entries += 1
                if found.is_dir(follow_symlinks=False):
                    pending.append(found.path)
                elif found.is_file(follow_symlinks=False):
                    status = found.stat(follow_symlinks=False)
                    if status.st_nlink == 1 or status.st_ino not in seen:
                        size += status.st_size
                    if status.st_nlink > 1:
                        seen.add(status.st_ino)
    return OutputSize(entries, size)
