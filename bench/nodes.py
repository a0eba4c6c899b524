"""Pulls of one image by several nodes at once, on one machine: ``python -m bench.nodes CALIBRATION.json``.

A node is a process with its own cache or a shared one, or a rank of an MPI job. The registry listens on a loopback
address behind a proxy that limits its total rate (`tests.support.slow_link`). The file written holds the measurements
and the site, described by what each of its parts reaches alone; `bench.calibration` compares it with the simulation.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import hashlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import zstandard
from aiohttp import web
from isal import isal_zlib

from bench.calibration import Calibration, Measurement
from bench.cluster import cpu_seconds, mpi_command
from bench.simulate import SimulatedImage, Site
from fastpull.demo.registry import LoopbackRegistry
from fastpull.layers.archive import archive
from tests.support.images.generated import Shape
from tests.support.setup_errors import ProgramFailed
from tests.support.slow_link import serve

_SHAPE = Shape("nodes", layers=4, files=120, file_size=1 << 20)
_REFERENCE = "test/nodes"
_BLOCK = 128 << 10
_POLL_SECONDS = 1.0
_STRATEGIES = {
    # strategy: the values of `squashed` that it supports
    "independent pulls": (False, True),
    "shared cache": (False, True),
    "MPI fetch": (False,),
    "MPI build": (True,),
}


class CountingRegistry(LoopbackRegistry):
    """A registry that counts sent bytes.

    Attributes:
        sent: bytes of blobs sent so far.
    """

    sent = 0

    async def serve_blob(self, request: web.Request, name: str, digest: str) -> web.StreamResponse:
        """Serve a blob or a range, and count its bytes."""
        answer = await super().serve_blob(request, name, digest)
        if isinstance(answer, web.Response) and isinstance(answer.body, bytes) and request.method == "GET":
            self.sent += len(answer.body)
        return answer


@dataclass(frozen=True, slots=True)
class NodeLayer:
    """A layer, uncompressed and compressed."""

    tar: bytes
    blob: bytes


def make_layers() -> list[NodeLayer]:
    """Return the layers of the image, always the same."""
    found = []
    for number in range(_SHAPE.layers):
        tar = archive((entry, b"".join(pieces)) for entry, pieces in _SHAPE.members(number))
        found.append(NodeLayer(tar, gzip.compress(tar, 1, mtime=0)))
    return found


async def commands(count: int, arguments: Callable[[int], list[str]]) -> float:
    """Run commands concurrently, and return the seconds until the last one ends.

    They run at a low priority, because the registry would be a separate machine.
    """
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(_run([sys.executable, "-m", "fastpull", *arguments(number)]))
    return time.monotonic() - began


async def ranks(count: int, arguments: Callable[[int], list[str]]) -> float:
    """Run the ranks of an MPI job, and return the seconds until the last one ends."""
    command = mpi_command(count, arguments)
    began = time.monotonic()
    await _run(command)
    return time.monotonic() - began


async def _run(command: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        "nice", *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    if process.returncode:
        raise ProgramFailed("fastpull", process.returncode, errors.decode())


def _warming(reference: str, cache: str) -> Callable[[int], list[str]]:
    return lambda _: ["warm", reference, "--cache", cache]


def _warming_each(reference: str, caches: Sequence[str]) -> Callable[[int], list[str]]:
    return lambda rank: ["warm", reference, "--cache", caches[rank]]


async def _exchange_seconds(address: str, folder: str) -> float:
    """Return the processor time to send an image to another node, including its hash; the least of three runs."""
    found = []
    for number in range(3):
        seconds = []
        for tag in ("v1", "v2"):  # an empty image, and the image that the cache of rank 1 holds
            caches = (f"{folder}/taken-{number}-{tag}", f"{folder}/0")
            before = cpu_seconds()
            await ranks(2, _warming_each(f"{address}:{tag}", caches))
            seconds.append(cpu_seconds() - before)
        found.append(seconds[1] - seconds[0])
    return min(found)


def _squashing(reference: str, folder: str) -> Callable[[int], list[str]]:
    return lambda _: ["pull", reference, "-o", f"{folder}/image.sqsh", "--force", "--cache", f"{folder}/start"]


def diff_ids_of(layers: list[NodeLayer]) -> list[str]:
    """Return the diff_ids of layers."""
    return [f"sha256:{hashlib.sha256(layer.tar).hexdigest()}" for layer in layers]


async def measure(
    address: str, registry: CountingRegistry, strategy: str, count: int, squashed: bool, folder: str
) -> tuple[float, int]:
    """Run once from empty caches; return the seconds and the blob bytes sent by the registry."""
    work = tempfile.mkdtemp(dir=folder)
    is_shared, is_mpi = strategy == "shared cache", strategy.startswith("MPI")

    def arguments(number: int) -> list[str]:
        cache = ["--cache", f"{work}/cache" if is_shared else f"{work}/cache-{number}"]
        cache += [] if is_mpi else ["--job", work]
        reference = f"{address}/{_REFERENCE}:v1"
        if not squashed:
            return ["warm", reference, *cache]
        return ["pull", reference, "-o", f"{work}/{number}.sqsh", *cache, *(["--keep-images"] if is_shared else [])]

    before = registry.sent
    try:
        seconds = await (ranks if is_mpi else commands)(count, arguments)
    finally:
        shutil.rmtree(work)
    return seconds, registry.sent - before


def _rate(size: int, work: Callable[[], object]) -> float:
    """Return bytes per second of the best of three runs."""
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return size / best


async def site_of(layers: list[NodeLayer], folder: str, rate: float, nodes: int) -> Site:
    """Measure each part of this machine alone, and return it as a site."""
    blob, tar = (b"".join(getattr(layer, kind) for layer in layers) for kind in ("blob", "tar"))
    compressor = zstandard.ZstdCompressor(level=1)

    def verify() -> None:
        hashlib.sha256(blob)

    def inflate() -> None:
        verify()
        for layer in layers:
            isal_zlib.decompress(layer.blob, wbits=31)
        hashlib.sha256(tar)

    def build() -> None:
        for at in range(0, len(tar), _BLOCK):
            compressor.compress(tar[at : at + _BLOCK])

    def write() -> None:
        with open(f"{folder}/probe", "wb") as file:
            file.write(blob)
        os.unlink(f"{folder}/probe")

    async with LoopbackRegistry() as empty:
        empty.add_image(_REFERENCE, "v1", [], [])
        reference = f"{empty.address}/{_REFERENCE}:v1"
        start = min([await commands(1, _warming(reference, f"{folder}/start")) for _ in range(3)])
        starts = [f"{folder}/start-{rank}" for rank in range(nodes)]
        crowd = max(1.0, nodes / len(os.sched_getaffinity(0)))
        # ranks wait for each other at the start, and share the cores meanwhile
        joining = min([await ranks(nodes, _warming_each(reference, starts)) for _ in range(3)]) / crowd - start
        squashing = min([await commands(1, _squashing(reference, folder)) for _ in range(3)]) - start
        empty.add_image(_REFERENCE, "v2", [layer.blob for layer in layers], diff_ids_of(layers))
        address = f"{empty.address}/{_REFERENCE}"
        receiving = min([await commands(1, _warming(f"{address}:v2", f"{folder}/{k}")) for k in range(3)]) - start
        verify_rate = _rate(len(blob), verify)
        exchanging = await _exchange_seconds(address, folder) - len(blob) / verify_rate
    disk = _rate(len(blob), write)
    return Site(
        registry_rate=rate,
        registry_latency_seconds=0.0,
        connection_rate=1e9,
        connections=16,
        network_rate=1e9,
        interconnect_rate=1e9,
        interconnect_latency_seconds=0.0,
        shared_rate=disk,
        shared_node_rate=disk,
        disk_rate=disk,
        cores=len(os.sched_getaffinity(0)),
        receive_rate=len(blob) / receiving,
        verify_rate=verify_rate,
        inflate_rate=_rate(len(blob), inflate),
        build_rate=_rate(len(blob), build),
        start_seconds=start,
        squash_seconds=max(0.0, squashing),
        mpi_seconds=max(0.0, joining),
        exchange_rate=2 * len(blob) / exchanging,
        poll_seconds=_POLL_SECONDS,
        nodes_per_machine=max(nodes, 1),
    )


async def run(options: argparse.Namespace) -> None:
    """Measure as the options say, and write the file."""
    layers, counts = make_layers(), [int(word) for word in options.nodes.split(",")]
    rate = options.rate * 1e6
    folder = tempfile.mkdtemp(prefix="fastpull-nodes-", dir=options.folder)
    points = []
    try:
        site = await site_of(layers, folder, rate, max(counts))
        async with CountingRegistry() as registry:
            registry.add_image(_REFERENCE, "v1", [layer.blob for layer in layers], diff_ids_of(layers))
            host, _, port = registry.address.rpartition(":")
            proxy = await serve((host, int(port)), 0.0, 1e9, rate)
            address = "{}:{}".format(*proxy.sockets[0].getsockname()[:2])
            async with proxy:
                for (strategy, squashed), count in product(options.strategies, counts):
                    runs = [
                        await measure(address, registry, strategy, count, squashed, folder)
                        for _ in range(options.rounds)
                    ]
                    seconds, sent = (statistics.median(one) for one in zip(*runs, strict=True))
                    points.append(Measurement(strategy, count, squashed, round(seconds, 3), sent))
                    print(f"{points[-1]}", flush=True)
            proxy.close()
        output = await _output_size(layers, folder)
    finally:
        shutil.rmtree(folder)
    image = SimulatedImage(tuple(len(layer.blob) for layer in layers), output)
    Calibration(site, image, tuple(points)).write(options.calibration)


async def _output_size(layers: list[NodeLayer], folder: str) -> int:
    async with LoopbackRegistry() as registry:
        registry.add_image(_REFERENCE, "v1", [layer.blob for layer in layers], diff_ids_of(layers))
        await commands(1, _squashing(f"{registry.address}/{_REFERENCE}:v1", folder))
        return os.stat(f"{folder}/image.sqsh").st_size


def main() -> int:
    """Measure pulls by several nodes, and write the calibration file."""
    parser = argparse.ArgumentParser(prog="python -m bench.nodes", description=main.__doc__)
    parser.add_argument("calibration", metavar="CALIBRATION.json")
    parser.add_argument("--nodes", metavar="N,...", default="1,2,4,8", help="numbers of nodes (default: 1,2,4,8)")
    parser.add_argument(
        "--rate", metavar="MB/S", type=float, default=30.0, help="total rate of the registry (default: 30)"
    )
    parser.add_argument(
        "--strategies",
        metavar="NAME",
        nargs="+",
        default=list(_STRATEGIES),
        choices=_STRATEGIES,
        help="strategies (default: all)",
    )
    parser.add_argument("--rounds", metavar="N", type=int, default=1, help="runs for each median (default: 1)")
    parser.add_argument(
        "--folder", metavar="DIR", default="/dev/shm", help="folder for caches and outputs (default: /dev/shm)"
    )
    options = parser.parse_args()
    options.strategies = [(name, squashed) for name in options.strategies for squashed in _STRATEGIES[name]]
    asyncio.run(run(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
