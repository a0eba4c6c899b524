"""One rank of a test's job: the command with ``{rank}`` replaced in its arguments, with or without a fault.

Environment variables:
    TEST_PIDS: a folder for files with the process ids.
    TEST_FULL: a rank that cannot write large files.
    TEST_SPOIL: a rank that sends damaged pieces of artifacts.
    TEST_OTHER: a rank that changes a bit of its finished file.
    TEST_ODD: a rank that gets the arguments after ``--`` in place of those before.
    TEST_SHIELD: hides the death of a rank from the launcher, as ``srun --no-kill --kill-on-bad-exit=0`` does.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from fastpull.cli import script
from fastpull.cluster.transport.fabric import HEADER_SIZE
from fastpull.cluster.transport.frame import Frame, FrameKind
from fastpull.sinks.squashfs.image.image_writer import SquashfsReport
from fastpull.sinks.squashfs.sink import Squashfs

_NAMES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")


def shield(folder: Path, rank: str) -> None:
    """Continue in a child process. This process ends after rank 0 has ended, with the exit code of its child."""
    child = os.fork()
    if not child:
        return
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if rank == "0":
        (folder / "over").touch()
    while not (folder / "over").exists():
        time.sleep(0.05)
    os._exit(max(code, 0))


def spoil() -> None:
    """Damage the artifacts that are sent, after their fingerprint is computed."""
    pack = Frame.pack

    def spoiled(frame: Frame, memory: memoryview) -> memoryview:
        packed = pack(frame, memory)
        if frame.kind is FrameKind.ARTIFACT:
            memory[HEADER_SIZE] ^= 1
        return packed

    Frame.pack = spoiled  # type: ignore[method-assign,assignment]


def make_other() -> None:
    """Change a bit of the squashfs file after it is assembled."""
    assemble = Squashfs.assemble

    def other(sink: Squashfs, *arguments: Any) -> SquashfsReport:
        report = assemble(sink, *arguments)
        fd = sink._staging.fd
        os.pwrite(fd, bytes([os.pread(fd, 1, 1 << 20)[0] ^ 1]), 1 << 20)
        return report

    Squashfs.assemble = other  # type: ignore[method-assign]


if __name__ == "__main__":
    rank = next(os.environ[name] for name in _NAMES if name in os.environ)
    folder = Path(os.environ["TEST_PIDS"])
    if "TEST_SHIELD" in os.environ:
        shield(folder, rank)
    common, _, odd = " ".join(sys.argv[1:]).partition(" -- ")
    arguments = (odd if os.environ.get("TEST_ODD") == rank else common).replace("{rank}", rank).split()
    os.environ["FASTPULL_CACHE"] = os.environ["FASTPULL_CACHE"].replace("{rank}", rank)
    (folder / rank).write_text(str(os.getpid()))
    if os.environ.get("TEST_FULL") == rank:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
    if os.environ.get("TEST_SPOIL") == rank:
        spoil()
    if os.environ.get("TEST_OTHER") == rank:
        make_other()
    script(arguments)
