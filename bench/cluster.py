"""Many nodes behind one registry: ``python -m bench.cluster`` times MPI jobs whose registry gives so much and no more.

The ranks of a job are processes of this machine, each a node with a cache of its own, joined by the MPI of the wheel
``mpich``. The registry's rate is capped for all connections together, as an uplink is; what is measured is the time
until all nodes have the image, against one node alone, what left the registry, and each rank's peak memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from bench.errors import BenchError
from bench.folders import temporary_folder
from bench.slow import Line
from bench.tables import aligned
from fastpull.demo.registry import LoopbackRegistry
from fastpull.layers.archive import archive
from fastpull.layers.entry import Entry, EntryType

MIB = 1 << 20
_PIECE = 256 << 10
_LAYERS = (0.6, 0.25, 0.15)  # of the image
_TIMEOUT_SECONDS = 170
_HEADER = ("ranks", "fan-out", "seconds to all", "of one node", "registry", "exchanged MiB", "peak RSS MiB")


class CappedRegistry(LoopbackRegistry):
    """Gives blobs at a rate that all connections share.

    Args:
        rate: bytes a second.

    Attributes:
        sent: bytes of blobs so far.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self._line = Line(0.0, rate)
        self.sent = 0

    async def serve_blob(self, request: web.Request, name: str, digest: str) -> web.StreamResponse:
        """Answers a request for a blob, or a range of it, as fast as the line allows."""
        whole = await super().serve_blob(request, name, digest)
        if not isinstance(whole, web.Response) or not isinstance(whole.body, bytes):
            return whole
        answer = web.StreamResponse(status=whole.status, headers=whole.headers)
        await answer.prepare(request)
        loop = asyncio.get_running_loop()
        for at in range(0, len(whole.body), _PIECE):
            piece = whole.body[at : at + _PIECE]
            await asyncio.sleep(max(0.0, self._line.send(len(piece), loop.time()) - loop.time()))
            self.sent += len(piece)
            await answer.write(piece)
        return answer


@dataclass(frozen=True, slots=True)
class Run:
    """One job.

    Attributes:
        ranks: nodes.
        fan_out: to how many others each sends.
        seconds: until all had the image.
        registry: bytes that left the registry.
        exchanged: bytes between nodes.
        max_memory: of the rank that had most, in bytes.
    """

    ranks: int
    fan_out: int
    seconds: float
    registry: int
    exchanged: int
    max_memory: int


def publish(registry: LoopbackRegistry, size: int) -> str:
    """Puts an image of incompressible layers there; returns its name."""
    noise, layers, diff_ids = random.Random(1), [], []
    for share in _LAYERS:
        content = noise.randbytes(int(size * share))
        tar = archive([(Entry(b"data", EntryType.FILE, size=len(content)), content)])
        layers.append(tar)
        diff_ids.append(str(registry.add_blob(tar, "")["digest"]))
    registry.add_image("bench/cluster", "v1", layers, diff_ids, layer_type="application/vnd.oci.image.layer.v1.tar")
    return f"{registry.address}/bench/cluster:v1"


async def run_job(verb: str, ranks: int, fan_out: int, image: str, folder: Path) -> dict[str, Any]:
    """Runs a job from cold caches; returns what rank 0 says of it."""
    script = (
        'R=${PMI_RANK:-0}; mkdir -p "$FOLDER/$R"; [ "$VERB" = warm ] || set -- "$@" -o "$FOLDER/$R/image.sqsh"; '
        'FASTPULL_CACHE="$FOLDER/$R/cache" exec "$PYTHON" -m fastpull "$VERB" --mpi --rank-is-node --json "$@"'
    )
    mpiexec = Path(sys.executable).parent / "mpiexec"
    if not mpiexec.exists():
        raise BenchError(f"there is no {mpiexec}; it comes with pip install mpich")
    environment = {**os.environ, "FOLDER": str(folder), "PYTHON": sys.executable, "VERB": verb}
    process = await asyncio.create_subprocess_exec(
        *(mpiexec, "-n", str(ranks), "sh", "-c", script, "sh", "--mpi-fan-out", str(fan_out), image),
        env=environment,
        stdout=subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(process.communicate(), _TIMEOUT_SECONDS)
    results = [json.loads(line) for line in out.splitlines() if b'"event": "result"' in line]
    if process.returncode or not results:
        raise BenchError(f"the job of {ranks} ranks ended with {process.returncode}")
    return dict(results[0])


async def measure(options: argparse.Namespace) -> list[Run]:
    """Runs all jobs, each in a folder of its own."""
    runs = []
    async with CappedRegistry(options.rate * MIB) as registry:
        image = publish(registry, options.size * MIB)
        for ranks in options.ranks:
            for fan_out in options.fan_out if ranks > 1 else options.fan_out[:1]:
                registry.sent = 0
                with temporary_folder(options.folder, "fastpull-cluster-") as folder:
                    found = await run_job(options.verb, ranks, fan_out, image, Path(folder))
                memory = max(node["max_memory"] for node in found["nodes"])
                seconds, exchanged = found["seconds_to_all"], found["exchanged_bytes"]
                runs.append(Run(ranks, fan_out, seconds, registry.sent, exchanged, memory))
    return runs


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser("python -m bench.cluster", description=__doc__.partition("\n")[0])
    parser.add_argument("--verb", choices=("warm", "pull"), default="warm", help="pull makes a squashfs file on each")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8], help="of each job; the first is compared")
    parser.add_argument("--fan-out", type=int, nargs="+", default=[2], help="to how many others each rank sends")
    parser.add_argument("--size", type=int, default=96, help="of the image, in MiB")
    parser.add_argument("--rate", type=float, default=16.0, help="of the registry, in MiB a second, for all together")
    parser.add_argument("--folder", default="/dev/shm", help="where the caches are")
    options = parser.parse_args()
    try:
        runs = asyncio.run(measure(options))
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    rows = [
        (
            str(run.ranks),
            str(run.fan_out),
            f"{run.seconds:.2f}",
            f"{run.seconds / runs[0].seconds:.2f}x",
            f"{run.registry / (options.size * MIB):.3f}x",
            f"{run.exchanged / MIB:.0f}",
            f"{run.max_memory / MIB:.0f}",
        )
        for run in runs
    ]
    print(aligned([_HEADER, *rows], 0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
