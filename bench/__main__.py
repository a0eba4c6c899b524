"""``python -m bench``: whole pulls of a real image from a loopback registry, beside other programs.

Every run is cold, with a cache and an output of its own, and as whole processes: what a user waits for. On a virtual
machine the first touch of memory is expensive, on tmpfs and in the page cache alike, and the cost changes from minute
to minute with the neighbours. That is why the peers alternate within each round, why the order turns from round to
round, and why medians and ratios are quoted: a number of seconds says little beyond its own run.

In each round the stages of the job are measured, too, on one thread: what the machine itself needs. See `bench.limits`.

On disk what the runs made stays until all rounds are over: about 6 GB a round of the full image. See `spread`.
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
from bench.comparisons import COMPARISONS, choose
from bench.machine import machine, packages, versions
from bench.pictures import write_pictures
from bench.report import document, limit_table, summarize, summarize_limits, table
from bench.rounds import OutputLocation, run_rounds
from bench.sources import offered
from tests.support.folders import make_folder, temporary_folder
from tests.support.images.recipes import IMAGES
from tests.support.images.store import bench_folder, find_image
from tests.support.programs import PROGRAMS, require, require_root
from tests.support.setup_errors import SetupError

_TMPFS = "/dev/shm"


def main() -> int:
    """Runs the benchmark; the exit code is 1 if any run failed."""
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
    """Ends the benchmark in order: the registry is stopped, and the folders are removed."""
    sys.exit(128 + number)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Pulls an image, beside other programs.")
    parser.add_argument(
        "--image", default="full", metavar="NAME|oci:PATH:TAG", help=f"one of {', '.join(IMAGES)}, or a layout (full)"
    )
    parser.add_argument(
        "--outputs",
        default="usual",
        metavar="LIST",
        help=f"usual, all, or some of {','.join(comparison.key for comparison in COMPARISONS)} (usual)",
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each peer in each place (3)")
    parser.add_argument("--places", default="tmpfs,disk", metavar="LIST", help="of tmpfs and disk (tmpfs,disk)")
    parser.add_argument("--disk", metavar="DIR", help="the disk (work/ in FASTPULL_BENCH_DIR, ~/.cache/fastpull-bench)")
    parser.add_argument(
        "--json",
        default="build/bench/pull.json",
        metavar="FILE",
        help="for all results; pictures go beside it (%(default)s)",
    )
    return parser


def _run(options: argparse.Namespace) -> list[str]:
    require_root()
    if options.rounds < 1:
        raise SetupError("there has to be at least 1 round")
    disk = make_folder(os.path.abspath(options.disk or os.path.join(bench_folder(), "work")))
    make_folder(os.path.dirname(os.path.abspath(options.json)))
    places = _choose_places(options.places, disk)
    chosen = choose(options.outputs)
    layout = find_image(options.image)
    image = layout.facts()
    is_zstd = any(layer["mediaType"].endswith("+zstd") for layer in image["layers"])
    comparisons = [some for comparison in chosen if (some := comparison.among(is_zstd=is_zstd)).peers]
    compileall.compile_dir(os.path.dirname(fastpull.__file__), quiet=2)  # as pip does for whoever installs it
    require({program for comparison in comparisons for peer in comparison.peers for program in peer.programs})
    ways = {comparison.source for comparison in comparisons}
    with temporary_folder(disk, "registry-") as folder, offered(layout, ways, folder) as sources:
        results = run_rounds(layout, sources, comparisons, places, options.rounds)
    surroundings = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "image": image,
        "machine": machine(),
        "programs": versions(PROGRAMS),
        "packages": packages(),
    }
    cores = len(os.sched_getaffinity(0))
    written = document(results, comparisons, surroundings, cores)
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump(written, file, indent=2)
    folder, name = os.path.split(os.path.abspath(options.json))
    pictures = write_pictures(written, folder, os.path.splitext(name)[0])
    print(f"\n{image['name']}: {len(image['layers'])} layers, {image['compressed_bytes'] / 1e6:.0f} MB compressed\n")
    print(table(summarize(results, comparisons, cores)))
    if results.needs:
        print(f"\nwhat the machine needs\n\n{limit_table(summarize_limits(results, comparisons, cores))}")
    print(f"\nall samples: {options.json}; pictures: {' '.join(map(os.path.relpath, pictures))}")
    return results.failures


def _choose_places(names: str, disk: str) -> list[OutputLocation]:
    known = {"tmpfs": OutputLocation("tmpfs", _TMPFS, keeps=False), "disk": OutputLocation("disk", disk, keeps=True)}
    chosen = [known.get(name) for name in names.split(",")]
    if None in chosen:
        raise SetupError(f"no places {names!r}: a list of {', '.join(known)}")
    return [place for place in chosen if place is not None]


if __name__ == "__main__":
    sys.exit(main())
