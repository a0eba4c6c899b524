"""Measured runs of several nodes, and what the simulation says of them: ``python -m bench.calibration POINTS.json``.

The file says which site they were measured on: `bench.nodes` writes one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from bench.simulate import Outcome, SimulatedImage, Site, simulate
from bench.tables import aligned

MAX_ERROR = 0.2
"""By which a simulated time may differ from a measured one."""


@dataclass(frozen=True, slots=True)
class Point:
    """A measured run.

    Attributes:
        strategy, nodes, squashed: as for `simulate`.
        seconds: that it took, the median of several.
        registry_bytes: that left the registry.
    """

    strategy: str
    nodes: int
    squashed: bool
    seconds: float
    registry_bytes: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Points, with where they were measured.

    Attributes:
        site, image: as for `simulate`, by what a single node takes.
        points: of one or several nodes.
    """

    site: Site
    image: SimulatedImage
    points: tuple[Point, ...]

    @classmethod
    def read(cls, path: str) -> Calibration:
        """Reads a file: ``site`` and ``image`` by the names of their attributes, and ``points``."""
        with open(path, encoding="utf-8") as file:
            value: dict[str, Any] = json.load(file)
        image = SimulatedImage(tuple(value["image"]["layers"]), value["image"]["output"])
        return cls(Site(**value["site"]), image, tuple(Point(**point) for point in value["points"]))

    def write(self, path: str) -> None:
        """Writes such a file."""
        value = asdict(self)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.write("\n")

    def compared(self) -> Iterator[tuple[Point, Outcome]]:
        """Each point with what the simulation says of it."""
        for point in self.points:
            yield point, simulate(point.strategy, point.nodes, self.site, self.image, squashed=point.squashed)


def main() -> int:
    """Prints both; the exit code is 1 where a simulated time is off by more than `MAX_ERROR`."""
    rows, worst = [["strategy", "what", "binds", "nodes", "measured", "simulated", "error"]], 0.0
    for point, outcome in Calibration.read(sys.argv[1]).compared():
        error = outcome.seconds / point.seconds - 1
        worst = max(worst, abs(error))
        times = (f"{point.seconds:.2f} s", f"{outcome.seconds:.2f} s", f"{error:+.0%}")
        rows.append(
            [point.strategy, "squashfs" if point.squashed else "blobs", outcome.binds, str(point.nodes), *times]
        )
    print(aligned(rows, 3))
    return int(worst > MAX_ERROR)


if __name__ == "__main__":
    sys.exit(main())
