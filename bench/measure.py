"""Measurements of processes, from the kernel's counters, and of outputs."""

from __future__ import annotations

import os
import struct
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.programs import path_of
from tests.support.setup_errors import ProgramFailed

_OUTPUT_BLOCK = 512  # bytes; the unit of ru_oublock


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """The resources used by consecutive processes.

    Attributes:
        wall_seconds: time from the start of the first to the end of the last process.
        cpu_seconds: user and system time of all their threads and children.
        max_rss: peak memory of the largest process, in bytes. At least that of the measuring process, because the
            kernel includes it.
        written_bytes: size of the file pages that became dirty, as the kernel counts them; 0 on tmpfs.
    """

    wall_seconds: float
    cpu_seconds: float
    max_rss: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class OutputSize:
    """The size of an output.

    Attributes:
        entries: number of names in a tree, or of inodes in a squashfs image.
        bytes: content of all files of a tree, hard links counted once; or the size of a squashfs image.
    """

    entries: int
    bytes: int


def measure(commands: Sequence[Sequence[str]], folder: str) -> ProcessUsage:
    """Run programs one after the other, each as a process.

    Args:
        commands: names and arguments of the programs.
        folder: folder for their output and their temporary files.

    Raises:
        ProgramFailed: A program failed; the following ones were not started.
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
                with open(log_path, encoding="utf-8", errors="backslashreplace") as output:
                    raise ProgramFailed(command[0], process.returncode, output.read())
        return ProcessUsage(time.monotonic() - started, cpu_seconds, max_rss, written_bytes)


def output_size(path: str) -> OutputSize:
    """Return the size of a directory or of a squashfs image."""
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
