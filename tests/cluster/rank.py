"""One rank of a test's job: the command with ``{rank}`` in its arguments replaced, and perhaps a full disk.

Environment: ``TEST_PIDS`` is a folder for files with the process ids; ``TEST_FULL`` is a rank whose files cannot become
large; ``TEST_ODD`` is a rank that gets the arguments after ``--``, in place of those before; with ``TEST_SHIELD`` the
launcher does not get to see that a rank dies, as it is with ``srun --no-kill --kill-on-bad-exit=0``.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

from fastpull.cli import main

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
    sys.exit(main(arguments))
