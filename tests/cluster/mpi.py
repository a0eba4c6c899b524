"""Jobs of real MPI ranks on this machine, where each rank counts as a node with its own cache."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import ProcessResult, end

ROOT = Path(__file__).parents[2]
MPIEXEC = str(Path(sys.executable).parent / "mpiexec")  # of the wheel mpich


@dataclass
class Job:
    """A job in a folder with the ranks' ``cache-RANK``, ``out-RANK``, and process ids.

    Attributes:
        folder: the folder.
        ranks: the number of ranks.
        launcher: the command that starts the ranks.
    """

    folder: Path
    ranks: int
    launcher: tuple[str, ...] = (MPIEXEC,)

    async def start(self, *arguments: str | Path, cache: str = "", **environment: str) -> asyncio.subprocess.Process:
        """Start ``fastpull`` on all ranks."""
        (self.folder / "pids").mkdir(exist_ok=True)
        for path in (self.folder / "pids").iterdir():
            path.unlink()
        for rank in range(self.ranks):
            (self.folder / f"out-{rank}").mkdir(exist_ok=True)
        command = (*self.launcher, "-n", str(self.ranks), sys.executable, "-m", "tests.cluster.rank")
        return await asyncio.create_subprocess_exec(
            *command,
            *map(str, arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={
                **os.environ,
                "FASTPULL_CACHE": cache or f"{self.folder}/cache-{{rank}}",
                "TEST_PIDS": f"{self.folder}/pids",
                **environment,
            },
        )

    async def run(self, *arguments: str | Path, **environment: str) -> ProcessResult:
        """Run ``fastpull`` on all ranks, and wait for the end."""
        return await end(await self.start(*arguments, **environment), 100)

    def pid(self, rank: int) -> int:
        """Return the process id of a rank that has started."""
        return int((self.folder / "pids" / str(rank)).read_text())

    def blobs(self, rank: int) -> dict[str, bytes]:
        """Return the published blobs of a rank's cache, by digest."""
        found = (self.folder / f"cache-{rank}/v1/blobs/sha256").glob("*")
        return {f"sha256:{path.name}": path.read_bytes() for path in found if path.suffix != ".seal"}

    def leftovers(self) -> list[str]:
        """Return what remains in the output folders beside the outputs, and the claims in the caches."""
        places = [*self.folder.glob("out-*/.*"), *self.folder.glob("cache-*/v1/.*")]
        return [str(path) for path in places]


def result_of(ended: ProcessResult) -> dict[str, Any]:
    """Return the result that ``--json`` wrote."""
    events = [json.loads(line) for line in ended.out.splitlines()]
    [result] = [event for event in events if event["event"] == "result"]
    return dict(result)


def errors_of(ended: ProcessResult) -> list[str]:
    """Return the error lines."""
    return [line for line in ended.err.splitlines() if line.startswith("fastpull: error")]
