"""``python -m bench``: whole pulls of a real image from a loopback registry, beside other programs.

Every run is cold, with a cache and an output of its own, and as whole processes: what a user waits for. On a virtual
machine the first touch of memory is expensive, on tmpfs and in the page cache alike, and the cost changes from minute
to minute with the neighbours. That is why the peers alternate within each round, why the order turns from round to
round, and why medians and ratios are quoted: a number of seconds says little beyond its own run.

On disk what the runs made stays until all rounds are over: about 6 GB a round of the full image. See `spread`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from datetime import UTC, datetime
from typing import NoReturn

from bench.errors import BenchError
from bench.folders import make_folder, temporary_folder
from bench.images import bench_folder, find_image
from bench.machine import machine, packages, versions
from bench.peers import CONTESTS, Contest
from bench.programs import DEBIAN_PACKAGES, require, require_root
from bench.registry import serving
from bench.report import document, summarize, table
from bench.rounds import Place, run_rounds

_TMPFS = "/dev/shm"


def main() -> int:
    """Runs the benchmark; the exit code is 1 if any run failed."""
    options = _make_parser().parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        failures = _run(options)
    except BenchError as error:
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
    parser.add_argument("--image", default="full", metavar="full|small|oci:PATH:TAG", help="which (full)")
    parser.add_argument(
        "--outputs", default="all", metavar="LIST", help=f"some of {','.join(map(_key, CONTESTS))} (all)"
    )
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="runs of each peer in each place (3)")
    parser.add_argument("--places", default="tmpfs,disk", metavar="LIST", help="of tmpfs and disk (tmpfs,disk)")
    parser.add_argument("--disk", metavar="DIR", help="the disk (work/ in FASTPULL_BENCH_DIR, ~/.cache/fastpull-bench)")
    parser.add_argument("--json", default="build/bench/pull.json", metavar="FILE", help="for all results (%(default)s)")
    return parser


def _run(options: argparse.Namespace) -> list[str]:
    require_root()
    if options.rounds < 1:
        raise BenchError("there has to be at least 1 round")
    disk = make_folder(os.path.abspath(options.disk or os.path.join(bench_folder(), "work")))
    make_folder(os.path.dirname(os.path.abspath(options.json)))
    places = _choose_places(options.places, disk)
    layout = find_image(options.image)
    image = layout.facts()
    contests = _choose_contests(options.outputs)
    require({program for contest in contests for peer in contest.peers for program in peer.programs})
    with temporary_folder(disk, "registry-") as folder, serving(layout, folder) as reference:
        samples, failures = run_rounds(reference, contests, places, options.rounds)
    surroundings = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "image": image,
        "machine": machine(),
        "programs": versions(DEBIAN_PACKAGES),
        "packages": packages(),
    }
    with open(options.json, "w", encoding="utf-8") as file:
        json.dump(document(samples, failures, surroundings), file, indent=2)
    print(f"\n{image['name']}: {len(image['layers'])} layers, {image['compressed_bytes'] / 1e6:.0f} MB compressed\n")
    print(table(summarize(samples)))
    print(f"\nall samples: {options.json}")
    return failures


def _key(contest: Contest) -> str:
    return contest.name.replace(",", "").replace(" ", "-")


def _choose_contests(names: str) -> list[Contest]:
    if names == "all":
        return list(CONTESTS)
    known = {_key(contest): contest for contest in CONTESTS}
    for name in names.split(","):
        if name not in known:
            raise BenchError(f"no output {name!r}: a list of {', '.join(known)}")
    return [known[name] for name in names.split(",")]


def _choose_places(names: str, disk: str) -> list[Place]:
    known = {"tmpfs": Place("tmpfs", _TMPFS, keeps=False), "disk": Place("disk", disk, keeps=True)}
    chosen = [known.get(name) for name in names.split(",")]
    if None in chosen:
        raise BenchError(f"no places {names!r}: a list of {', '.join(known)}")
    return [place for place in chosen if place is not None]


if __name__ == "__main__":
    sys.exit(main())
