"""Simulation of the time until all nodes have an image: ``python -m bench.simulate FOLDER`` writes charts and tables.

A small discrete-event simulation. An image is cut into pieces. Each piece passes servers in order: the registry, a
connection, the core that inflates its layer, the node's cores, disks. A server processes pieces in the order of their
arrival, at its rate, so that the slowest server delays all others. Nodes are identical and start together; a piece that
all nodes exchange is therefore followed on one node only.

`bench.calibration` compares the simulation with measurements.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TypeAlias

from bench.curves import Curve, draw_curves
from bench.tables import aligned
from tests.support.slow_link import Link

NODES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


@dataclass(frozen=True, slots=True)
class Site:
    """A registry and identical nodes. Rates are bytes per second.

    Attributes:
        registry_rate: rate of the registry to all nodes together.
        registry_latency_seconds: time from a request to its response.
        connection_rate: rate of one connection.
        connections: connections of a node.
        network_rate: rate of a node's external network.
        interconnect_rate: rate at which a node receives from other nodes, while it sends at the same rate.
        interconnect_latency_seconds: latency of one message.
        shared_rate: rate of the shared filesystem for all nodes together.
        shared_node_rate: rate of the shared filesystem for one node.
        disk_rate: write rate of a node's own disk.
        cores: cores of a machine.
        receive_rate: compressed bytes that a core receives and stores.
        verify_rate: compressed bytes that a core hashes.
        inflate_rate: compressed bytes that a core inflates, hashes and scans.
        build_rate: compressed bytes for which a core writes squashfs blocks, after inflation.
        start_seconds: processor seconds of each command before its first request and at its end.
        squash_seconds: additional processor seconds of a command that writes a squashfs image.
        mpi_seconds: additional processor seconds of a command that is a rank of an MPI job.
        exchange_rate: bytes that a core sends to other nodes, or receives, checks and stores.
        requests: sequential requests to the registry before the first layer.
        poll_seconds: longest interval between two checks of a waiting process.
        nodes_per_machine: nodes that are processes of one machine and share its cores.
    """

    registry_rate: float
    registry_latency_seconds: float
    connection_rate: float
    connections: int
    network_rate: float
    interconnect_rate: float
    interconnect_latency_seconds: float
    shared_rate: float
    shared_node_rate: float
    disk_rate: float
    cores: int
    receive_rate: float
    verify_rate: float
    inflate_rate: float
    build_rate: float
    start_seconds: float
    squash_seconds: float
    mpi_seconds: float
    exchange_rate: float
    requests: int = 4
    poll_seconds: float = 1.0
    nodes_per_machine: int = 1


@dataclass(frozen=True, slots=True)
class SimulatedImage:
    """The pulled image.

    Attributes:
        layers: compressed size of each layer.
        output: size of the squashfs image.
    """

    layers: tuple[int, ...]
    output: int

    @property
    def size(self) -> int:
        """Return the compressed size of all layers."""
        return sum(self.layers)


TYPICAL = Site(
    registry_rate=1.25e9,
    registry_latency_seconds=0.03,
    connection_rate=100e6,
    connections=16,
    network_rate=3e9,
    interconnect_rate=12e9,
    interconnect_latency_seconds=20e-6,
    shared_rate=100e9,
    shared_node_rate=3e9,
    disk_rate=2e9,
    cores=64,
    receive_rate=1e9,
    verify_rate=1.5e9,
    inflate_rate=150e6,
    build_rate=200e6,
    start_seconds=0.3,
    squash_seconds=0.1,
    mpi_seconds=0.5,
    exchange_rate=1.5e9,
)
"""A registry with 10 Gbit/s; nodes with 25 Gbit/s to it, 100 Gbit/s between them, and NVMe disks."""

LARGE = SimulatedImage(
    layers=(3_000_000_000, 2_000_000_000, 1_500_000_000, 1_000_000_000, *([250_000_000] * 10)), output=10**10
)
"""A machine-learning image of 10 GB (compressed) in 14 layers."""


@dataclass(slots=True)
class Server:
    """A server that processes pieces in the order of their arrival.

    Attributes:
        name: name in the results.
        link: link with the rate and the next free time of the server.
        busy_seconds: total processing time.
    """

    name: str
    link: Link
    busy_seconds: float = 0.0

    def take(self, size: float, now: float) -> float:
        """Process a piece that arrives now, and return the time of completion."""
        self.busy_seconds += size / self.link.rate
        return self.link.send(size, now)


Steps: TypeAlias = Iterator[tuple[Server | None, float]]
"""The route of a piece: servers with an amount of work each, or None with a delay in seconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a simulation.

    Attributes:
        seconds: time until all nodes have the image.
        registry_bytes: bytes sent by the registry.
        busy: utilization of the busiest server of each kind, in descending order.
    """

    seconds: float
    registry_bytes: float
    busy: Mapping[str, float]

    @property
    def bottleneck(self) -> str:
        """Return the kind of server with the highest utilization."""
        return next(iter(self.busy), "nothing")


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a layer.

    Attributes:
        layer: number of the layer.
        size: compressed size in bytes.
        output: size of its part of the squashfs image.
    """

    layer: int
    size: float
    output: float


class World:
    """The servers of one simulation.

    Args:
        site: rates of the servers.
        image: image to pull.
        nodes: number of nodes.
        squashed: whether the nodes write squashfs images.
        pieces: number of pieces of the image.
    """

    def __init__(self, site: Site, image: SimulatedImage, nodes: int, squashed: bool, pieces: int) -> None:
        self.site, self.image = site, image
        self.servers: list[Server] = []
        self.registry = self.add("registry", site.registry_rate)
        self.shared = self.add("shared filesystem", site.shared_rate)
        self.sent = 0.0
        crowd = max(1.0, min(nodes, site.nodes_per_machine) / site.cores)
        start = site.start_seconds + (site.squash_seconds if squashed else 0.0)
        self.began = start * crowd + site.requests * site.registry_latency_seconds
        self.mpi_began = self.began + site.mpi_seconds * crowd
        self._machines: dict[int, SimulatedMachine] = {}
        self.pieces = list(_cut(image, pieces))

    def add(self, name: str, rate: float) -> Server:
        """Add a server."""
        server = Server(name, Link(0.0, rate))
        self.servers.append(server)
        return server

    def machine(self, node: int) -> SimulatedMachine:
        """Return the machine of a node."""
        number = node // self.site.nodes_per_machine
        if number not in self._machines:
            self._machines[number] = SimulatedMachine(self)
        return self._machines[number]

    def download(self, piece: Piece, node: SimulatedNode) -> Steps:
        """Download a piece from the registry to a node."""
        self.sent += piece.size
        yield None, self.site.registry_latency_seconds
        yield self.registry, piece.size
        yield next(node.connections), piece.size
        yield node.network, piece.size
        yield node.machine.cores, piece.size / self.site.receive_rate

    @staticmethod
    def run(routes: Iterable[Steps], began: float) -> float:
        """Send pieces along their routes from a common start, and return the time when the last one arrives."""
        number, end = 0, began
        coming: list[tuple[float, int, Steps]] = []
        for route in routes:
            coming.append((began, number, route))
            number += 1
        while coming:
            now, _, route = heapq.heappop(coming)
            step = next(route, None)
            if step is None:
                end = max(end, now)
                continue
            server, size = step
            number += 1
            heapq.heappush(coming, (now + size if server is None else server.take(size, now), number, route))
        return end

    def outcome(self, seconds: float) -> Outcome:
        """Return the outcome."""
        busy: dict[str, float] = {}
        for server in self.servers:
            if server.busy_seconds:
                busy[server.name] = max(busy.get(server.name, 0.0), server.busy_seconds / seconds)
        return Outcome(seconds, self.sent, dict(sorted(busy.items(), key=lambda item: -item[1])))


class SimulatedMachine:
    """The cores of one machine, shared by its nodes.

    Attributes:
        cores: server for all cores together; its work is in seconds of one core.
    """

    def __init__(self, world: World) -> None:
        self.site = world.site
        self.cores = world.add("cores", world.site.cores)

    def verify(self, piece: Piece) -> Steps:
        """Hash a piece."""
        yield self.cores, piece.size / self.site.verify_rate

    def build(self, piece: Piece, inflater: Server) -> Steps:
        """Write the blocks of a piece; one core inflates its layer in order."""
        yield inflater, piece.size
        yield self.cores, piece.size / self.site.inflate_rate + piece.size / self.site.build_rate


class SimulatedNode:
    """The links and the disk of a node."""

    def __init__(self, world: World, number: int) -> None:
        site = world.site
        self.machine = world.machine(number)
        self.connections = cycle([world.add("connections", site.connection_rate) for _ in range(site.connections)])
        self.network = world.add("a node's network", site.network_rate)
        self.interconnect = world.add("interconnect", site.interconnect_rate)
        self.shared = world.add("a node's link to the shared filesystem", site.shared_node_rate)
        self.disk = world.add("a node's disk", site.disk_rate)
        chains = min(site.cores, len(world.image.layers))
        inflaters = [world.add("inflating a layer", site.inflate_rate) for _ in range(chains)]
        self._inflater = [inflaters[place] for place in assign(world.image.layers, chains)]

    def make(self, piece: Piece, squashed: bool) -> Steps:
        """Verify a piece, or write its blocks."""
        if squashed:
            return self.machine.build(piece, self._inflater[piece.layer])
        return self.machine.verify(piece)

    def exchange(self, size: float, beside: int) -> Steps:
        """Receive bytes from another node and send as many; `beside` nodes on the same cores do the same."""
        yield self.interconnect, size
        yield self.machine.cores, 2 * size * beside / self.machine.site.exchange_rate


def assign(sizes: Sequence[int], places: int) -> list[int]:
    """Assign layers to places, the largest layer first, always to the place with the least load."""
    loads, found = [0] * places, [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        place = min(range(places), key=loads.__getitem__)
        loads[place] += sizes[number]
        found[number] = place
    return found


def _cut(image: SimulatedImage, count: int) -> Iterator[Piece]:
    """Yield pieces in the order of their requests: all layers concurrently, each from its start."""
    size, ratio = image.size / count, image.output / image.size
    parts = []
    for number, layer in enumerate(image.layers):
        each = max(1, round(layer / size))
        piece = Piece(number, layer / each, layer / each * ratio)
        parts += [((place + 1) / each, number, piece) for place in range(each)]
    for _, _, piece in sorted(parts, key=lambda part: part[:2]):
        yield piece


Strategy: TypeAlias = Callable[[World, int, bool], float]
"""A function that simulates a number of nodes, with squashfs images or blobs, and returns the time of the last one."""


def independent(world: World, count: int, squashed: bool) -> float:
    """Let each node pull independently."""
    nodes = [SimulatedNode(world, number) for number in range(count)]

    def route(piece: Piece, node: SimulatedNode) -> Steps:
        yield from world.download(piece, node)
        yield from node.make(piece, squashed)
        yield node.disk, piece.output if squashed else piece.size

    return world.run((route(piece, node) for piece in world.pieces for node in nodes), world.began)


def shared(world: World, count: int, squashed: bool) -> float:
    """Let one node pull into the shared cache; other nodes copy a squashfs image, and use blobs in place."""
    nodes = [SimulatedNode(world, number) for number in range(count)]
    leader = nodes[0]

    def route(piece: Piece) -> Steps:
        yield from world.download(piece, leader)
        yield from leader.make(piece, squashed)
        for server in (leader.shared, world.shared):
            yield server, piece.output if squashed else piece.size

    def copy(piece: Piece, node: SimulatedNode) -> Steps:
        for server in (world.shared, node.shared, node.disk):
            yield server, piece.output

    published = world.run((route(piece) for piece in world.pieces), world.began)
    published += world.site.poll_seconds * (1 - 1 / count)
    if not squashed:
        return published
    return world.run((copy(piece, node) for piece in world.pieces for node in nodes), published)


def mpi_fetch(world: World, count: int, squashed: bool) -> float:
    """Let each node download a part and forward it to all others; each node writes its own output."""
    nodes = [SimulatedNode(world, number) for number in range(count)]
    hops = math.ceil(math.log2(count)) * world.site.interconnect_latency_seconds
    one = nodes[0]
    beside = min(count, world.site.nodes_per_machine)  # nodes that share the same cores

    def route(piece: Piece, giver: SimulatedNode) -> Steps:
        yield from world.download(piece, giver)
        if count > 1:
            yield None, hops
            yield from one.exchange(piece.size * (count - 1) / count, beside)
        for server, work in one.make(piece, squashed):
            yield server, work * beside if server is one.machine.cores else work
        yield one.disk, piece.output if squashed else piece.size

    return world.run((route(piece, nodes[place % count]) for place, piece in enumerate(world.pieces)), world.mpi_began)


def mpi_build(world: World, count: int, squashed: bool) -> float:
    """Let one node fetch, inflate and compress each layer and send its blocks; all nodes assemble them."""
    if not squashed or count == 1:
        return mpi_fetch(world, count, squashed)
    site, layers = world.site, world.image.layers
    nodes = [SimulatedNode(world, number) for number in range(min(count, len(layers) + 1))]
    owners = assign(layers, count)
    hops = math.ceil(math.log2(count)) * site.interconnect_latency_seconds
    one = nodes[-1]  # the node that builds least and receives most
    beside = min(count, site.nodes_per_machine)

    def route(piece: Piece, owner: SimulatedNode) -> Steps:
        yield from world.download(piece, owner)
        yield from owner.make(piece, squashed=True)
        if owner is not one:
            yield None, hops
            yield from one.exchange(piece.output, beside)
        yield one.disk, piece.output

    def compare(piece: Piece) -> Steps:
        yield one.machine.cores, piece.output * beside / site.exchange_rate

    gathered = world.run((route(piece, nodes[owners[piece.layer]]) for piece in world.pieces), world.mpi_began)
    return world.run((compare(piece) for piece in world.pieces), gathered)


STRATEGIES: Mapping[str, Strategy] = {
    "independent pulls": independent,
    "shared cache": shared,
    "MPI fetch": mpi_fetch,
    "MPI build": mpi_build,
}


def simulate(
    strategy: str, nodes: int, site: Site, image: SimulatedImage, *, squashed: bool = True, pieces: int = 128
) -> Outcome:
    """Simulate one run.

    Args:
        strategy: one of `STRATEGIES`.
        nodes: number of nodes.
        site: site of the nodes.
        image: image to pull.
        squashed: whether each node writes a squashfs image to its disk; otherwise verified blobs go to its cache.
        pieces: number of pieces of the image; 0 chooses a number that keeps the simulation short.
    """
    if not pieces:
        pieces = 256 if strategy.startswith("MPI") else max(16, min(256, 100_000 // nodes))
    world = World(site, image, nodes, squashed, pieces)
    return world.outcome(STRATEGIES[strategy](world, nodes, squashed))


# --- charts and tables


def curves(site: Site, image: SimulatedImage, *, squashed: bool) -> list[tuple[str, list[Outcome]]]:
    """Return the outcomes of each strategy for each of `NODES`."""
    names = [name for name in STRATEGIES if squashed or name != "MPI build"]
    return [(name, [simulate(name, count, site, image, squashed=squashed) for count in NODES]) for name in names]


def _draw(folder: str) -> None:
    for squashed, what in ((True, "squashfs"), (False, "blobs")):
        found = curves(TYPICAL, LARGE, squashed=squashed)
        drawn = [
            Curve(name, tuple((count, one.seconds) for count, one in zip(NODES, outcomes, strict=True)))
            for name, outcomes in found
        ]
        title = f"10 GB image, {what}: seconds until all nodes have it, simulated"
        with open(f"{folder}/scaling-{what}.svg", "w", encoding="utf-8") as file:
            file.write(draw_curves(title, drawn, x="nodes", y="seconds"))
        print(f"\n{title}\n")
        rows = [
            [str(count), *(f"{outcomes[place].seconds:.0f} s, {outcomes[place].bottleneck}" for _, outcomes in found)]
            for place, count in enumerate(NODES)
        ]
        print(aligned([["nodes", *(name for name, _ in found)], *rows], len(found) + 1))


def main() -> int:
    """Draw the curves into the folder named on the command line."""
    _draw(sys.argv[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
