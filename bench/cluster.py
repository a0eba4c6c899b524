"""MPI jobs behind a registry with a limited rate: ``python -m bench.cluster``.

The ranks of a job are processes of this machine, each a node with its own cache, connected by the MPI of the ``mpich``
wheel. The registry's rate is limited for all connections together, like an uplink. The results are the time until all
nodes have the image, relative to a single node, the bytes sent by the registry, the peak memory of a rank, and the
processor time of all ranks.
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
from tests.support.slow_link import Link

MIB = 1 << 20
_PIECE = 256 << 10
_LAYERS = (0.6, 0.25, 0.15)  # shares of the image
_TIMEOUT_SECONDS = 170
_FILE_SIZE = 1 << 20
_HEADER = (
    "ranks",
    "fan-out",
    "seconds to all",
    "of one node",
    "registry",
    "blobs MiB",
    "blocks MiB",
    "RSS MiB",
    "CPU s",
)


class CappedRegistry(LoopbackRegistry):
    """A registry whose connections share one rate.

    Args:
        rate: bytes per second.

    Attributes:
        sent: bytes of blobs sent so far.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self._link = Link(0.0, rate)
        self.sent = 0

    async def serve_blob(self, request: web.Request, name: str, digest: str) -> web.StreamResponse:
        """Serve a blob or a range at the rate of the link."""
        whole = await super().serve_blob(request, name, digest)
        if not isinstance(whole, web.Response) or not isinstance(whole.body, bytes):
            return whole
        response = web.StreamResponse(status=whole.status, headers=whole.headers)
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        for at in range(0, len(whole.body), _PIECE):
            piece = whole.body[at : at + _PIECE]
            await asyncio.sleep(max(0.0, self._link.send(len(piece), loop.time()) - loop.time()))
            self.sent += len(piece)
            await response.write(piece)
        return response


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """The result of one job.

    Attributes:
        ranks: number of nodes.
        fan_out: number of nodes that each node sends to.
        seconds: time until all nodes had the image.
        registry: bytes sent by the registry.
        exchanged: bytes of blobs sent between nodes.
        runs: bytes of layer blocks sent between nodes.
        max_memory: peak memory of the largest rank, in bytes.
        cpu_seconds: processor time of all ranks.
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
    """Add an image to a registry; return its reference and its size.

    Args:
        registry: registry that receives the image.
        size: size of the image in bytes; approximate for ``files``.
        content: ``noise``, which is incompressible, or ``files``, compressed with gzip.
    """
    noise, layers, diff_ids, kind = random.Random(1), [], [], "tar"
    for number, share in enumerate(_LAYERS):
        if content == "noise":
            data = noise.randbytes(int(size * share))
            tar = archive([(Entry(b"data", EntryType.FILE, size=len(data)), data)])
            layers.append(tar)
        else:  # gzip halves this content
            shape = Shape("cluster", layers=1, files=max(1, int(2 * size * share) // _FILE_SIZE), file_size=_FILE_SIZE)
            tar = archive((entry, b"".join(pieces)) for entry, pieces in shape.members(number))
            layers.append(gzip.compress(tar, 1, mtime=0))
            kind = "tar+gzip"
        diff_ids.append("sha256:" + hashlib.sha256(tar).hexdigest())
    media_type = f"application/vnd.oci.image.layer.v1.{kind}"
    registry.add_image("bench/cluster", "v1", layers, diff_ids, layer_type=media_type)
    return f"{registry.address}/bench/cluster:v1", sum(map(len, layers))


def mpi_command(ranks: int, arguments: Callable[[int], list[str]]) -> list[str]:
    """Return the command of an MPI job, with the launcher of the ``mpich`` wheel.

    Args:
        ranks: number of ranks, each a separate node.
        arguments: function from a rank to the arguments of ``fastpull``.
    """
    mpiexec = Path(sys.executable).parent / "mpiexec"
    if not mpiexec.exists():
        raise SetupError(f"{mpiexec} does not exist; run: pip install mpich")
    command = [str(mpiexec)]
    for rank in range(ranks):
        command += [":"] * (rank > 0)
        command += ["-n", "1", sys.executable, "-m", "fastpull", *arguments(rank), "--mpi", "--rank-is-node"]
    return command


async def run_job(verb: str, ranks: int, fan_out: int, image: str, folder: Path) -> dict[str, Any]:
    """Run a job from cold caches, and return the result event of rank 0."""

    def arguments(rank: int) -> list[str]:
        output = ["-o", f"{folder}/{rank}.sqsh"] if verb == "pull" else []
        return [verb, image, *output, "--cache", f"{folder}/{rank}", "--json", "--mpi-fan-out", str(fan_out)]

    command = mpi_command(ranks, arguments)
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        out, _ = await process.communicate()
    results = [json.loads(line) for line in out.splitlines() if b'"event": "result"' in line]
    if process.returncode or not results:
        raise SetupError(f"the job of {ranks} ranks failed with exit code {process.returncode}")
    return dict(results[0])


async def measure(options: argparse.Namespace) -> tuple[list[ClusterRun], int]:
    """Run all jobs, each in its own folder; return their results and the size of the image."""
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
    """Return user and system time of all ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Run the jobs and print a table."""
    parser = argparse.ArgumentParser("python -m bench.cluster", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--verb",
        choices=("warm", "pull"),
        default="warm",
        help="pull writes a squashfs image on each node (default: %(default)s)",
    )
    parser.add_argument(
        "--content", choices=("noise", "files"), help="content of the image (default: noise for warm, files for pull)"
    )
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[1, 2, 4, 8], help="ranks of each job; the first job is the baseline"
    )
    parser.add_argument("--fan-out", type=int, nargs="+", default=[2], help="number of ranks that each rank sends to")
    parser.add_argument("--size", type=int, default=96, help="size of the image in MiB")
    parser.add_argument("--rate", type=float, default=16.0, help="total rate of the registry in MiB per second")
    parser.add_argument("--folder", default="/dev/shm", help="folder for the caches")
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
