"""Growth of a pull: ``python -m bench.scaling`` doubles the entries, layers or bytes of a generated image.

`tests.support.images.adversarial` has further images, which make careless code superlinear; their entries are doubled.
A row of the table shows how one doubling changes time and memory: 2.00x is proportional, 1.00x is no change. Images
with more layers hold the same files. All come from a local layout: the figures contain nothing but fastpull.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from statistics import median

from bench.machine import machine, packages
from bench.measure import ProcessUsage, measure
from bench.tables import aligned, times
from tests.support.folders import make_folder, temporary_folder
from tests.support.images.adversarial import ADVERSARIAL, AdversarialImage
from tests.support.images.generated import Shape
from tests.support.images.layouts import TAG, write_layout
from tests.support.programs import require
from tests.support.setup_errors import SetupError

_FILE_BYTES = 1 << 20
_LEVEL = 1  # compression level: images are temporary, and inflation takes the same time
_OUTPUTS = {"directory": "rootfs/", "squashfs": "image.sqsh"}
_HEADER = ("dimension", "output", "size", "median s", "time", "CPU s", "CPU", "peak RSS MiB", "RSS")


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension that is doubled.

    Attributes:
        name: name on the command line, and unit of the numbers.
        numbers: sizes, each twice the one before.
    """

    name: str
    numbers: tuple[int, ...]

    def shape(self, number: int) -> Shape | AdversarialImage:
        """Return the image of a size."""
        match self.name:
            case "entries":
                return Shape("entries", layers=4, files=number, file_size=100)
            case "layers":
                return Shape("layers", layers=number, files=12_800, file_size=16 << 10, replaced=10)
            case name if name in ADVERSARIAL:
                return AdversarialImage(name, number)
            case _:
                return Shape("bytes", layers=2, files=number // _FILE_BYTES, file_size=_FILE_BYTES)


DIMENSIONS = (
    Dimension("entries", (125_000, 250_000, 500_000, 1_000_000)),
    Dimension("layers", (16, 32, 64, 128)),
    Dimension("bytes", (256 << 20, 512 << 20, 1 << 30, 2 << 30)),
    *(Dimension(name, (125_000, 250_000, 500_000, 1_000_000)) for name in ADVERSARIAL),
)


@dataclass(frozen=True, slots=True)
class Step:
    """The summary of pulls of one size.

    Attributes:
        dimension, output: names of both.
        number: size in the dimension.
        seconds: median wall time.
        cpu_seconds: median processor time, which is more reliable on a busy machine.
        max_rss: peak memory, in bytes.
        time_growth, cpu_growth, rss_growth: ratios to the values of half the size; None for the first size.
    """

    dimension: str
    output: str
    number: int
    seconds: float
    cpu_seconds: float
    max_rss: int
    time_growth: float | None = None
    cpu_growth: float | None = None
    rss_growth: float | None = None


def steps_of(dimension: str, output: str, runs: Sequence[tuple[int, Sequence[ProcessUsage]]]) -> list[Step]:
    """Summarize runs.

    Args:
        dimension: name of the dimension.
        output: name of the output.
        runs: measurements for each size, in ascending order.
    """
    steps: list[Step] = []
    for number, usages in runs:
        seconds = median(usage.wall_seconds for usage in usages)
        cpu_seconds = median(usage.cpu_seconds for usage in usages)
        max_rss = max(usage.max_rss for usage in usages)
        before = steps[-1] if steps else None
        growth = (
            (seconds / before.seconds, cpu_seconds / before.cpu_seconds, max_rss / before.max_rss) if before else ()
        )
        steps.append(Step(dimension, output, number, seconds, cpu_seconds, max_rss, *growth))
    return steps


def table(steps: Sequence[Step]) -> str:
    """Format the steps as a table."""
    cells = [
        (
            step.dimension,
            step.output,
            f"{step.number:,}",
            f"{step.seconds:.2f}",
            times(step.time_growth),
            f"{step.cpu_seconds:.2f}",
            times(step.cpu_growth),
            f"{step.max_rss / (1 << 20):.0f}",
            times(step.rss_growth),
        )
        for step in steps
    ]
    return aligned([_HEADER, *cells], 2)


def main() -> int:
    """Measure, print a table, and write all results."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scaling", description="Measure how a pull scales with a generated image."
    )
    parser.add_argument(
        "--dimensions",
        default="entries,layers,bytes",
        metavar="LIST",
        help=f"dimensions to double (default: %(default)s); also {','.join(ADVERSARIAL)}",
    )
    parser.add_argument(
        "--outputs", default="directory,squashfs", metavar="LIST", help="outputs (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=4, metavar="N", help="sizes of each dimension, in ascending order (default: 4)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each size (default: 3)")
    parser.add_argument(
        "--folder", default="/dev/shm", metavar="DIR", help="folder for images and outputs (default: %(default)s)"
    )
    parser.add_argument(
        "--json", default="build/bench/scaling.json", metavar="FILE", help="file for all results (default: %(default)s)"
    )
    options = parser.parse_args()
    try:
        require(("fastpull",))
        steps = _run(options)
    except SetupError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    make_folder(os.path.dirname(os.path.abspath(options.json)))
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump({"machine": machine(), "packages": packages(), "steps": [asdict(step) for step in steps]}, file)
    print(f"\n{table(steps)}")
    return 0


def _run(options: argparse.Namespace) -> list[Step]:
    known = {dimension.name: dimension for dimension in DIMENSIONS}
    names, outputs = options.dimensions.split(","), options.outputs.split(",")
    if not (known.keys() >= set(names) and _OUTPUTS.keys() >= set(outputs)):
        raise SetupError(f"unknown dimension or output; dimensions: {', '.join(known)}; outputs: {', '.join(_OUTPUTS)}")
    steps = []
    for dimension in map(known.__getitem__, names):
        runs: dict[str, list[tuple[int, list[ProcessUsage]]]] = {output: [] for output in outputs}
        for number in dimension.numbers[: options.steps]:
            print(f"{dimension.name}: {number:,}", file=sys.stderr)
            with temporary_folder(options.folder, "fastpull-scaling-") as folder:
                layout = os.path.join(folder, "layout")
                _generate(dimension.shape(number), layout)
                for output, measured in runs.items():
                    measured.append((number, [_pull(layout, output, folder) for _ in range(options.rounds)]))
        for output, measured in runs.items():
            steps += steps_of(dimension.name, output, measured)
    return steps


def _generate(shape: Shape | AdversarialImage, path: str) -> None:
    """Write the image in a separate process, because a child's peak includes its parent's memory."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(_write, shape, path).result()


def _write(shape: Shape | AdversarialImage, path: str) -> None:
    write_layout(path, map(shape.members, range(shape.layers)), _LEVEL)


def _pull(layout: str, output: str, folder: str) -> ProcessUsage:
    run = os.path.join(folder, "run")
    os.mkdir(run)
    command = ["fastpull", "pull", "--quiet", "--cache", os.path.join(run, "cache"), f"oci:{layout}:{TAG}"]
    try:
        os.sync()
        return measure([[*command, "-o", os.path.join(run, _OUTPUTS[output])]], run)
    finally:
        shutil.rmtree(run)


if __name__ == "__main__":
    sys.exit(main())
