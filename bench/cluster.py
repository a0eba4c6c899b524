"""Many nodes behind one registry: ``python -m bench.cluster`` times MPI jobs whose registry gives so much and no more.

The ranks of a job are processes of this machine, each a node with a cache of its own, joined by the MPI of the wheel
``mpich``. The registry's rate is capped for all connections together, as an uplink is; what is measured is the time
until all nodes have the image, against one node alone, what left the registry, each rank's peak memory, and the CPU
time of all ranks together.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import hashlib
import json
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from bench.tables import aligned
from fastpull.demo.registry import LoopbackRegistry
from fastpull.layers.archive import archive
from fastpull.layers.entry import Entry, EntryType
from tests.support.folders import temporary_folder
from tests.support.images.generated import Shape
from tests.support.setup_errors import SetupError
from tests.support.slow_link import Line

MIB = 1 << 20
_PIECE = 256 << 10
_LAYERS = (0.6, 0.25, 0.15)  # of the image
_TIMEOUT_SECONDS = 170
_FILE_SIZE = 1 << 20
_HEADER = ("ranks", "fan-out", "seconds to all", "of one node", "registry", "blobs MiB", "runs MiB", "RSS MiB", "CPU s")


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
class ClusterRun:
    """One job.

    Attributes:
        ranks: nodes.
        fan_out: to how many others each sends.
        seconds: until all had the image.
        registry: bytes that left the registry.
        exchanged: bytes of blobs between nodes.
        runs: bytes of compressed layers between nodes.
        max_memory: of the rank that had most, in bytes.
        cpu_seconds: of all ranks.
    """

    ranks: int
    fan_out: int
    seconds: float
    registry: int
    exchanged: int
    runs: int
    max_memory: int
    cpu_seconds: float


def publish(registry: LoopbackRegistry, size: int, content: str) -> tuple[str, int]:
    """Puts an image there; returns its name and its size.

    Args:
        registry: to put it there.
        size: of the image, in bytes; about so many where the content is of files.
        content: ``noise`` of which nothing can be compressed, or ``files``, compressed with gzip.
    """
    noise, layers, diff_ids, kind = random.Random(1), [], [], "tar"
    for number, share in enumerate(_LAYERS):
        if content == "noise":
            data = noise.randbytes(int(size * share))
            tar = archive([(Entry(b"data", EntryType.FILE, size=len(data)), data)])
            layers.append(tar)
        else:  # which gzip halves
            shape = Shape("cluster", layers=1, files=max(1, int(2 * size * share) // _FILE_SIZE), file_size=_FILE_SIZE)
            tar = archive((entry, b"".join(pieces)) for entry, pieces in shape.members(number))
            layers.append(gzip.compress(tar, 1, mtime=0))
            kind = "tar+gzip"
        diff_ids.append("sha256:" + hashlib.sha256(tar).hexdigest())
    media_type = f"application/vnd.oci.image.layer.v1.{kind}"
    registry.add_image("bench/cluster", "v1", layers, diff_ids, layer_type=media_type)
    return f"{registry.address}/bench/cluster:v1", sum(map(len, layers))


def mpi_command(ranks: int, arguments: Callable[[int], list[str]]) -> list[str]:
    """The command of an MPI job, by the launcher of the wheel ``mpich``.

    Args:
        ranks: how many there are, each a node of its own.
        arguments: of ``fastpull``, for each rank.
    """
    mpiexec = Path(sys.executable).parent / "mpiexec"
    if not mpiexec.exists():
        raise SetupError(f"there is no {mpiexec}; it comes with pip install mpich")
    command = [str(mpiexec)]
    for rank in range(ranks):
        command += [":"] * (rank > 0)
        command += ["-n", "1", sys.executable, "-m", "fastpull", *arguments(rank), "--mpi", "--rank-is-node"]
    return command


async def run_job(verb: str, ranks: int, fan_out: int, image: str, folder: Path) -> dict[str, Any]:
    """Runs a job from cold caches; returns what rank 0 says of it."""

    def arguments(rank: int) -> list[str]:
        output = ["-o", f"{folder}/{rank}.sqsh"] if verb == "pull" else []
        return [verb, image, *output, "--cache", f"{folder}/{rank}", "--json", "--mpi-fan-out", str(fan_out)]

    command = mpi_command(ranks, arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        out, _ = await process.communicate()
    results = [json.loads(line) for line in out.splitlines() if b'"event": "result"' in line]
    if process.returncode or not results:
        raise SetupError(f"the job of {ranks} ranks ended with {process.returncode}")
    return dict(results[0])


async def measure(options: argparse.Namespace) -> tuple[list[ClusterRun], int]:
    """Runs all jobs, each in a folder of its own; returns the size of the image, too."""
    runs = []
    async with CappedRegistry(options.rate * MIB) as registry:
        content = options.content or ("noise" if options.verb == "warm" else "files")
        image, size = publish(registry, options.size * MIB, content)
        for ranks in options.ranks:
            for fan_out in options.fan_out if ranks > 1 else options.fan_out[:1]:
                registry.sent = 0
                before = cpu_seconds()
                with temporary_folder(options.folder, "fastpull-cluster-") as folder:
                    found = await run_job(options.verb, ranks, fan_out, image, Path(folder))
                memory = max(node["max_memory"] for node in found["nodes"])
                seconds, exchanged = found["seconds_to_all"], found["exchanged_bytes"]
                bytes_of_runs, cpu = found.get("run_bytes", 0), cpu_seconds() - before
                runs.append(ClusterRun(ranks, fan_out, seconds, registry.sent, exchanged, bytes_of_runs, memory, cpu))
    return runs, size


def cpu_seconds() -> float:
    """Of all processes that were started here and have ended, user and system."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser("python -m bench.cluster", description=__doc__.partition("\n")[0])
    parser.add_argument("--verb", choices=("warm", "pull"), default="warm", help="pull makes a squashfs file on each")
    parser.add_argument(
        "--content", choices=("noise", "files"), help="of the image; by default noise for warm, files for pull"
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8], help="of each job; the first is compared")
    parser.add_argument("--fan-out", type=int, nargs="+", default=[2], help="to how many others each rank sends")
    parser.add_argument("--size", type=int, default=96, help="of the image, in MiB")
    parser.add_argument("--rate", type=float, default=16.0, help="of the registry, in MiB a second, for all together")
    parser.add_argument("--folder", default="/dev/shm", help="where the caches are")
    options = parser.parse_args()
    try:
        runs, size = asyncio.run(measure(options))
    except SetupError as error:
        print(error, file=sys.stderr)
        return 1
    rows = [
        (
            str(run.ranks),
            str(run.fan_out),
            f"{run.seconds:.2f}",
            f"{run.seconds / runs[0].seconds:.2f}x",
            f"{run.registry / size:.3f}x",
            f"{run.exchanged / MIB:.0f}",
            f"{run.runs / MIB:.0f}",
            f"{run.max_memory / MIB:.0f}",
            f"{run.cpu_seconds:.1f}",
        )
        for run in runs
    ]
    print(aligned([_HEADER, *rows], 0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
