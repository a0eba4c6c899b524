"""One rank of a test's job: the command with ``{rank}`` in its arguments replaced, and perhaps a full disk.

Environment: ``TEST_PIDS`` is a folder for files with the process ids; ``TEST_FULL`` is a rank that may write small files
only; ``TEST_ODD`` is a rank that gets the arguments after ``--``, in place of those before.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from fastpull.cli import main

_NAMES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")

if __name__ == "__main__":
    rank = next(os.environ[name] for name in _NAMES if name in os.environ)
    common, _, odd = " ".join(sys.argv[1:]).partition(" -- ")
    arguments = (odd if os.environ.get("TEST_ODD") == rank else common).replace("{rank}", rank).split()
    os.environ["FASTPULL_CACHE"] = os.environ["FASTPULL_CACHE"].replace("{rank}", rank)
    Path(os.environ["TEST_PIDS"], rank).write_text(str(os.getpid()))
    if os.environ.get("TEST_FULL") == rank:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
    sys.exit(main(arguments))
