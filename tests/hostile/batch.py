"""Recipes in a separate process under strace: ``python -m tests.hostile.batch FOLDER CANARY RECIPE...``.

It does not check verdicts. A lookup of the missing ``FOLDER/begin`` marks the start in the trace.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.hostile.recipes import ALL
from tests.hostile.running import SINKS, outcome


def main() -> None:
    folder, canary, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    assert not os.path.lexists(folder / "begin")
    for name in names:
        for kind in SINKS:
            folder.mkdir()
            outcome(ALL[name], kind, folder, canary, 2)
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
