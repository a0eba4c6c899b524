"""One rank of a test's job: the command with ``{rank}`` in its arguments replaced, and perhaps a fault.

Environment: ``TEST_PIDS`` is a folder for files with the process ids; ``TEST_FULL`` is a rank whose files cannot become
large; ``TEST_SPOIL`` is a rank that sends changed pieces of runs; ``TEST_OTHER`` is a rank in whose finished file a bit
is changed; ``TEST_ODD`` is a rank that gets the arguments after ``--``, in place of those before; with ``TEST_SHIELD``
the launcher does not get to see that a rank dies, as it is with ``srun --no-kill --kill-on-bad-exit=0``.
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
    """Goes on in a child. This process ends when rank 0 has, with the code of a child that was not killed."""
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
    """Changes what is sent of runs, behind the header that says what it was."""
    seal = Frame.seal

    def spoiled(window: Frame, memory: memoryview) -> memoryview:
        sealed = seal(window, memory)
        if window.kind is FrameKind.PRODUCT:
            memory[HEADER_SIZE] ^= 1
        return sealed

    Frame.seal = spoiled  # type: ignore[method-assign,assignment]


def make_other() -> None:
    """Changes a bit of the squashfs file when it is assembled."""
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
