"""Jobs of real MPI ranks on this machine, each a node of its own with a cache of its own."""

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
    """A folder with what the ranks of a job have: ``cache-RANK``, ``out-RANK``, and the process ids.

    Attributes:
        folder: for it all.
        ranks: how many there are.
    """

    folder: Path
    ranks: int
    launcher: tuple[str, ...] = (MPIEXEC,)

    async def start(self, *arguments: str | Path, cache: str = "", **environment: str) -> asyncio.subprocess.Process:
        """Starts ``fastpull`` on all ranks."""
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
        """Runs ``fastpull`` on all ranks to the end."""
        return await end(await self.start(*arguments, **environment), 100)

    def pid(self, rank: int) -> int:
        """Of a rank that has started."""
        return int((self.folder / "pids" / str(rank)).read_text())

    def blobs(self, rank: int) -> dict[str, bytes]:
        """What a rank's cache has published, by digest."""
        found = (self.folder / f"cache-{rank}/v1/blobs/sha256").glob("*")
        return {f"sha256:{path.name}": path.read_bytes() for path in found if path.suffix != ".seal"}

    def drafts(self) -> list[str]:
        """What is left in the output folders beside the outputs, and of claims in the caches."""
        places = [*self.folder.glob("out-*/.*"), *self.folder.glob("cache-*/v1/.*")]
        return [str(path) for path in places]


def result_of(ended: ProcessResult) -> dict[str, Any]:
    """The result that ``--json`` has written."""
    events = [json.loads(line) for line in ended.out.splitlines()]
    [result] = [event for event in events if event["event"] == "result"]
    return dict(result)


def errors_of(ended: ProcessResult) -> list[str]:
    """The lines with which fastpull says why it failed."""
    return [line for line in ended.err.splitlines() if line.startswith("fastpull: error")]
