"""``python -m bench``: whole pulls of a real image from a loopback registry, compared with other programs.

Every run is cold, with its own cache and output, and consists of whole processes. On a virtual machine the first access
to memory is expensive, and its cost changes from minute to minute with the neighbours. Therefore the programs alternate
within each round, their order rotates from round to round, and the report gives medians and ratios.

Each round also measures the stages of the job on one thread, which gives the limit of the machine; see `bench.limits`.

On disk the outputs stay until all rounds are over, about 6 GB for each round of the full image; see
`tests.support.folders.spread`.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import signal
import sys
from datetime import UTC, datetime
from typing import NoReturn

import fastpull
from bench.charts import write_charts
from bench.comparisons import COMPARISONS, choose
from bench.machine import machine, packages, versions
from bench.report import document, limit_table, summarize, summarize_limits, table
from bench.rounds import OutputLocation, run_rounds
from bench.sources import serve_sources
from tests.support.folders import make_folder, temporary_folder
from tests.support.images.recipes import IMAGES
from tests.support.images.store import bench_folder, find_image
from tests.support.programs import PROGRAMS, require, require_root
from tests.support.setup_errors import SetupError

_TMPFS = "/dev/shm"


def main() -> int:
    """Run the benchmark; return 1 if any run failed."""
    options = _make_parser().parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        failures = _run(options)
    except SetupError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    for failure in failures:
        print(f"bench: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _stop(number: int, _frame: object) -> NoReturn:
    """Exit through the context managers, which stop the registry and remove the folders."""
    sys.exit(128 + number)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Pull an image with fastpull and with other programs."
    )
    parser.add_argument(
        "--image", default="full", metavar="NAME|oci:PATH:TAG", help=f"{', '.join(IMAGES)}, or a layout (default: full)"
    )
    parser.add_argument(
        "--outputs",
        default="usual",
        metavar="LIST",
        help=f"usual, all, or a list of {','.join(comparison.key for comparison in COMPARISONS)} (default: usual)",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="runs of each program in each location (default: 3)"
    )
    parser.add_argument(
        "--locations", default="tmpfs,disk", metavar="LIST", help="list of tmpfs and disk (default: tmpfs,disk)"
    )
    parser.add_argument(
        "--disk",
        metavar="DIR",
        help="folder on the disk (default: work/ in FASTPULL_BENCH_DIR or ~/.cache/fastpull-bench)",
    )
    parser.add_argument(
        "--json",
        default="build/bench/pull.json",
        metavar="FILE",
        help="file for all results, with charts beside it (default: %(default)s)",
    )
    return parser


def _run(options: argparse.Namespace) -> list[str]:
    require_root()
    if options.rounds < 1:
        raise SetupError("--rounds has to be at least 1")
    disk = make_folder(os.path.abspath(options.disk or os.path.join(bench_folder(), "work")))
    make_folder(os.path.dirname(os.path.abspath(options.json)))
    locations = _choose_locations(options.locations, disk)
    chosen = choose(options.outputs)
    layout = find_image(options.image)
    image = layout.facts()
    is_zstd = any(layer["mediaType"].endswith("+zstd") for layer in image["layers"])
    comparisons = [eligible for comparison in chosen if (eligible := comparison.eligible(is_zstd=is_zstd)).peers]
    compileall.compile_dir(os.path.dirname(fastpull.__file__), quiet=2)  # as pip does at installation
    require({program for comparison in comparisons for peer in comparison.peers for program in peer.programs})
    transports = {comparison.source for comparison in comparisons}
    with temporary_folder(disk, "registry-") as folder, serve_sources(layout, transports, folder) as sources:
        results = run_rounds(layout, sources, comparisons, locations, options.rounds)
    environment = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "image": image,
        "machine": machine(),
        "programs": versions(PROGRAMS),
        "packages": packages(),
    }
    cores = len(os.sched_getaffinity(0))
    results_document = document(results, comparisons, environment, cores)
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump(results_document, file, indent=2)
    folder, name = os.path.split(os.path.abspath(options.json))
    charts = write_charts(results_document, folder, os.path.splitext(name)[0])
    print(f"\n{image['name']}: {len(image['layers'])} layers, {image['compressed_bytes'] / 1e6:.0f} MB compressed\n")
    print(table(summarize(results, comparisons, cores)))
    if results.stage_samples:
        print(f"\nlimits of the machine\n\n{limit_table(summarize_limits(results, comparisons, cores))}")
    print(f"\nall samples: {options.json}; charts: {' '.join(map(os.path.relpath, charts))}")
    return results.failures


def _choose_locations(names: str, disk: str) -> list[OutputLocation]:
    known = {"tmpfs": OutputLocation("tmpfs", _TMPFS, keeps=False), "disk": OutputLocation("disk", disk, keeps=True)}
    chosen = [known.get(name) for name in names.split(",")]
    if None in chosen:
        raise SetupError(f"unknown locations {names!r}; use a list of {', '.join(known)}")
    return [location for location in chosen if location is not None]


if __name__ == "__main__":
    sys.exit(main())
