"""Measured runs of several nodes against the simulation: ``python -m bench.calibration CALIBRATION.json``.

`bench.nodes` writes the file, with the measurements and the site they belong to.
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
"""The largest permitted relative difference between a simulated and a measured time."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measured run of several nodes.

    Attributes:
        strategy, nodes, squashed: arguments of `simulate`.
        seconds: median time of several runs.
        registry_bytes: bytes sent by the registry.
    """

    strategy: str
    nodes: int
    squashed: bool
    seconds: float
    registry_bytes: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measurements with their site and image.

    Attributes:
        site, image: arguments of `simulate`, measured on a single node.
        points: measurements of one or several nodes.
    """

    site: Site
    image: SimulatedImage
    points: tuple[Measurement, ...]

    @classmethod
    def read(cls, path: str) -> Calibration:
        """Read a JSON file with ``site``, ``image`` and ``points``."""
        with open(path, encoding="utf-8") as file:
            value: dict[str, Any] = json.load(file)
        image = SimulatedImage(tuple(value["image"]["layers"]), value["image"]["output"])
        return cls(Site(**value["site"]), image, tuple(Measurement(**point) for point in value["points"]))

    def write(self, path: str) -> None:
        """Write a JSON file with ``site``, ``image`` and ``points``."""
        value = asdict(self)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.write("\n")

    def compare(self) -> Iterator[tuple[Measurement, Outcome]]:
        """Yield each measurement with its simulated outcome."""
        for point in self.points:
            yield point, simulate(point.strategy, point.nodes, self.site, self.image, squashed=point.squashed)


def main() -> int:
    """Print measured and simulated times; return 1 if one differs by more than `MAX_ERROR`."""
    rows, worst = [["strategy", "output", "bottleneck", "nodes", "measured", "simulated", "error"]], 0.0
    for point, outcome in Calibration.read(sys.argv[1]).compare():
        error = outcome.seconds / point.seconds - 1
        worst = max(worst, abs(error))
        times = (f"{point.seconds:.2f} s", f"{outcome.seconds:.2f} s", f"{error:+.0%}")
        rows.append(
            [point.strategy, "squashfs" if point.squashed else "blobs", outcome.bottleneck, str(point.nodes), *times]
        )
    print(aligned(rows, 3))
    return int(worst > MAX_ERROR)


if __name__ == "__main__":
    sys.exit(main())
