"""How long until all nodes have an image, on paper: ``python -m bench.simulate FOLDER`` draws it and prints tables.

A small discrete simulation. An image is cut into pieces; a piece goes from one server to the next (registry,
connection, the core that inflates its layer, the node's cores, disks), and each server takes what comes first, at its
rate. So what is slowest anywhere holds up the rest, and nothing else is assumed. Nodes are alike and begin
together, so that a piece that all of them get from each other has to be followed on one of them only.

`bench.calibration` compares it with what was measured.
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
from tests.support.slow_link import Line

NODES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


@dataclass(frozen=True, slots=True)
class Site:
    """A registry, and nodes that are alike. Rates are bytes a second, of what is named.

    Attributes:
        registry_rate: what the registry sends to all together.
        registry_latency_seconds: from a request to its answer.
        connection_rate: what comes over one connection.
        connections: of a node.
        network_rate: what a node receives from outside.
        interconnect_rate: what a node receives from other nodes, while it sends as much.
        interconnect_latency_seconds: of one message.
        shared_rate: what a shared filesystem gives to, or takes from, all nodes together.
        shared_node_rate: the same for one node.
        disk_rate: what a node's own disk takes.
        cores: of a machine.
        receive_rate: compressed bytes that a core receives and stores.
        verify_rate: compressed bytes that a core hashes.
        inflate_rate: compressed bytes that a core inflates, hashes and scans.
        build_rate: compressed bytes, of which a core makes a squashfs file's blocks once they are inflated.
        start_seconds: of a core, for each command, until it asks the registry, and at its end.
        squash_seconds: the same for what is to become a squashfs file, more than for blobs.
        mpi_seconds: the same for a command that is a rank of an MPI job, more than for one alone.
        exchange_rate: bytes that a core sends to, or checks and stores of, other nodes.
        requests: to the registry, one after the other, before the first layer comes.
        poll_seconds: the longest pause between two looks of those who wait for somebody else.
        nodes_per_machine: of nodes that are processes of one machine, and share its cores.
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
    """What is pulled.

    Attributes:
        layers: bytes of each, compressed.
        output: bytes of the squashfs file.
    """

    layers: tuple[int, ...]
    output: int

    @property
    def size(self) -> int:
        """Of all layers, compressed, in bytes."""
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
"""A registry with 10 Gbit/s, nodes with 25 Gbit/s to it, 100 Gbit/s between them, and NVMe disks."""

LARGE = SimulatedImage(
    layers=(3_000_000_000, 2_000_000_000, 1_500_000_000, 1_000_000_000, *([250_000_000] * 10)), output=10**10
)
"""A machine-learning image of 10 GB, compressed, in 14 layers."""


@dataclass(slots=True)
class Server:
    """Takes pieces one after the other, in the order in which they come.

    Attributes:
        name: in results.
        line: when it is free.
        busy_seconds: that it worked.
    """

    name: str
    line: Line
    busy_seconds: float = 0.0

    def take(self, size: float, now: float) -> float:
        """Takes a piece that is there now, and returns when it is done."""
        self.busy_seconds += size / self.line.rate
        return self.line.send(size, now)


Steps: TypeAlias = Iterator[tuple[Server | None, float]]
"""The way of a piece: servers, with what each has to do; without a server it is only late, by so many seconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation found.

    Attributes:
        seconds: until all nodes have what they want.
        registry_bytes: that left the registry.
        busy: of each kind of server the share of that time that the busiest worked, the largest first.
    """

    seconds: float
    registry_bytes: float
    busy: Mapping[str, float]

    @property
    def binds(self) -> str:
        """What a faster one of would help most."""
        return next(iter(self.busy), "nothing")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a layer.

    Attributes:
        layer: its number.
        size: in bytes, compressed.
        output: bytes of the squashfs file that are made of it.
    """

    layer: int
    size: float
    output: float


class World:
    """The servers of one run.

    Args:
        site: with their rates.
        image: that is pulled.
        nodes: that there are.
        squashed: what they want.
        pieces: to cut it into.
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
        """A server."""
        server = Server(name, Line(0.0, rate))
        self.servers.append(server)
        return server

    def machine(self, node: int) -> SimulatedMachine:
        """The cores of a node."""
        number = node // self.site.nodes_per_machine
        if number not in self._machines:
            self._machines[number] = SimulatedMachine(self)
        return self._machines[number]

    def download(self, piece: Piece, node: SimulatedNode) -> Steps:
        """A node gets a piece from the registry."""
        self.sent += piece.size
        yield None, self.site.registry_latency_seconds
        yield self.registry, piece.size
        yield next(node.connections), piece.size
        yield node.network, piece.size
        yield node.machine.cores, piece.size / self.site.receive_rate

    @staticmethod
    def run(ways: Iterable[Steps], began: float) -> float:
        """Lets pieces go their ways, all from the same time on, and returns when the last has arrived."""
        number, end = 0, began
        coming: list[tuple[float, int, Steps]] = []
        for way in ways:
            coming.append((began, number, way))
            number += 1
        while coming:
            now, _, way = heapq.heappop(coming)
            step = next(way, None)
            if step is None:
                end = max(end, now)
                continue
            server, size = step
            number += 1
            heapq.heappush(coming, (now + size if server is None else server.take(size, now), number, way))
        return end

    def outcome(self, seconds: float) -> Outcome:
        """What came of it."""
        busy: dict[str, float] = {}
        for server in self.servers:
            if server.busy_seconds:
                busy[server.name] = max(busy.get(server.name, 0.0), server.busy_seconds / seconds)
        return Outcome(seconds, self.sent, dict(sorted(busy.items(), key=lambda item: -item[1])))


class SimulatedMachine:
    """The cores of a node, or of all nodes that are on one machine.

    Attributes:
        cores: all of them together; what they have to do is in seconds of one.
    """

    def __init__(self, world: World) -> None:
        self.site = world.site
        self.cores = world.add("cores", world.site.cores)

    def verify(self, piece: Piece) -> Steps:
        """Hashes a piece."""
        yield self.cores, piece.size / self.site.verify_rate

    def build(self, piece: Piece, inflater: Server) -> Steps:
        """Makes blocks of a piece, whose layer is inflated by one core from its front."""
        yield inflater, piece.size
        yield self.cores, piece.size / self.site.inflate_rate + piece.size / self.site.build_rate


class SimulatedNode:
    """A node's own lines and disk."""

    def __init__(self, world: World, number: int) -> None:
        site = world.site
        self.machine = world.machine(number)
        self.connections = cycle([world.add("connections", site.connection_rate) for _ in range(site.connections)])
        self.network = world.add("a node's network", site.network_rate)
        self.interconnect = world.add("interconnect", site.interconnect_rate)
        self.shared = world.add("a node's way to the shared filesystem", site.shared_node_rate)
        self.disk = world.add("a node's disk", site.disk_rate)
        chains = min(site.cores, len(world.image.layers))
        inflaters = [world.add("inflating a layer", site.inflate_rate) for _ in range(chains)]
        self._inflater = [inflaters[place] for place in assign(world.image.layers, chains)]

    def make(self, piece: Piece, squashed: bool) -> Steps:
        """Verifies a piece, or makes blocks of it."""
        if squashed:
            return self.machine.build(piece, self._inflater[piece.layer])
        return self.machine.verify(piece)

    def exchange(self, size: float, beside: int) -> Steps:
        """Receives bytes from another node, as so many nodes do on the same cores, and gives as many to others."""
        yield self.interconnect, size
        yield self.machine.cores, 2 * size * beside / self.machine.site.exchange_rate


def assign(sizes: Sequence[int], places: int) -> list[int]:
    """Gives each layer a place, the largest first, where there is least so far."""
    loads, found = [0] * places, [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        place = min(range(places), key=loads.__getitem__)
        loads[place] += sizes[number]
        found[number] = place
    return found


def _cut(image: SimulatedImage, count: int) -> Iterator[Piece]:
    """Pieces in the order in which they are asked for: layers side by side, each from its front."""
    size, ratio = image.size / count, image.output / image.size
    parts = []
    for number, layer in enumerate(image.layers):
        each = max(1, round(layer / size))
        piece = Piece(number, layer / each, layer / each * ratio)
        parts += [((place + 1) / each, number, piece) for place in range(each)]
    for _, _, piece in sorted(parts, key=lambda part: part[:2]):
        yield piece


Strategy: TypeAlias = Callable[[World, int, bool], float]
"""Simulates a number of nodes that want an image, squashed or not; returns when the last one has it."""


def independent(world: World, count: int, squashed: bool) -> float:
    """Each node pulls for itself."""
    nodes = [SimulatedNode(world, number) for number in range(count)]

    def way(piece: Piece, node: SimulatedNode) -> Steps:
        yield from world.download(piece, node)
        yield from node.make(piece, squashed)
        yield node.disk, piece.output if squashed else piece.size

    return world.run((way(piece, node) for piece in world.pieces for node in nodes), world.began)


def shared(world: World, count: int, squashed: bool) -> float:
    """One node pulls into the shared cache; of a squashfs file the others copy, of blobs they need no copy."""
    nodes = [SimulatedNode(world, number) for number in range(count)]
    leader = nodes[0]

    def way(piece: Piece) -> Steps:
        yield from world.download(piece, leader)
        yield from leader.make(piece, squashed)
        for server in (leader.shared, world.shared):
            yield server, piece.output if squashed else piece.size

    def copy(piece: Piece, node: SimulatedNode) -> Steps:
        for server in (world.shared, node.shared, node.disk):
            yield server, piece.output

    published = world.run((way(piece) for piece in world.pieces), world.began)
    published += world.site.poll_seconds * (1 - 1 / count)
    if not squashed:
        return published
    return world.run((copy(piece, node) for piece in world.pieces for node in nodes), published)


def mpi_fetch(world: World, count: int, squashed: bool) -> float:
    """Each node downloads a part, and gives it to all others while it comes; each makes its own output."""
    nodes = [SimulatedNode(world, number) for number in range(count)]
    hops = math.ceil(math.log2(count)) * world.site.interconnect_latency_seconds
    one = nodes[0]
    beside = min(count, world.site.nodes_per_machine)  # that do the same on the same cores

    def way(piece: Piece, giver: SimulatedNode) -> Steps:
        yield from world.download(piece, giver)
        if count > 1:
            yield None, hops
            yield from one.exchange(piece.size * (count - 1) / count, beside)
        for server, work in one.make(piece, squashed):
            yield server, work * beside if server is one.machine.cores else work
        yield one.disk, piece.output if squashed else piece.size

    return world.run((way(piece, nodes[place % count]) for place, piece in enumerate(world.pieces)), world.mpi_began)


def mpi_build(world: World, count: int, squashed: bool) -> float:
    """Each layer is fetched, inflated and compressed by one node, which gives its blocks to all; all assemble them."""
    if not squashed or count == 1:
        return mpi_fetch(world, count, squashed)
    site, layers = world.site, world.image.layers
    nodes = [SimulatedNode(world, number) for number in range(min(count, len(layers) + 1))]
    owners = assign(layers, count)
    hops = math.ceil(math.log2(count)) * site.interconnect_latency_seconds
    one = nodes[-1]  # that has made least, and gets most
    beside = min(count, site.nodes_per_machine)

    def way(piece: Piece, owner: SimulatedNode) -> Steps:
        yield from world.download(piece, owner)
        yield from owner.make(piece, squashed=True)
        if owner is not one:
            yield None, hops
            yield from one.exchange(piece.output, beside)
        yield one.disk, piece.output

    def compare(piece: Piece) -> Steps:
        yield one.machine.cores, piece.output * beside / site.exchange_rate

    gathered = world.run((way(piece, nodes[owners[piece.layer]]) for piece in world.pieces), world.mpi_began)
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
    """Simulates one run.

    Args:
        strategy: one of `STRATEGIES`.
        nodes: that want the image.
        site: that they are on.
        image: that they want.
        squashed: as a squashfs file on the disk of each; otherwise its blobs, verified, in the cache of each or of all.
        pieces: that the image is cut into; by default so many that it does not take long.
    """
    if not pieces:
        pieces = 256 if strategy.startswith("MPI") else max(16, min(256, 100_000 // nodes))
    world = World(site, image, nodes, squashed, pieces)
    return world.outcome(STRATEGIES[strategy](world, nodes, squashed))


# --- pictures and tables


def curves(site: Site, image: SimulatedImage, *, squashed: bool) -> list[tuple[str, list[Outcome]]]:
    """The outcomes of each strategy, for each of `NODES`."""
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
            [str(count), *(f"{outcomes[place].seconds:.0f} s, {outcomes[place].binds}" for _, outcomes in found)]
            for place, count in enumerate(NODES)
        ]
        print(aligned([["nodes", *(name for name, _ in found)], *rows], len(found) + 1))


def main() -> int:
    """Draws the curves into the folder that the command line names."""
    _draw(sys.argv[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
