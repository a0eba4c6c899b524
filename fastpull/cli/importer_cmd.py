"""``fastpull importer``: what pyxis calls to get a squashfs file for a step of a job, and to give it back."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, NoReturn

import fastpull
from fastpull.cli.console import LineConsole
from fastpull.cli.main import script as fastpull_script
from fastpull.cli.measured import measured
from fastpull.cli.running import run
from fastpull.cli.words import size_of

_EPILOG = """\
examples:
  fastpull importer get docker://nvcr.io#nvidia/pytorch:24.01-py3    prints the path of a squashfs file
  fastpull importer release                                          the step does not need it any more

pyxis calls fastpull-importer, which is the same: importer=/usr/bin/fastpull-importer in plugstack.conf.
Settings come from configuration files and FASTPULL_*, the step from SLURM_JOB_ID and SLURM_STEP_ID.
"""


def add_verb(verbs: Any) -> None:
    """Adds the verb and its own verbs to the command."""
    parser = verbs.add_parser(
        "importer",
        help="get squashfs files for pyxis",
        description="Gets squashfs files for the steps of Slurm jobs, as pyxis wants it, out of the cache.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    getting = actions.add_parser("get", help="print the path of an image's squashfs file", description="See importer.")
    getting.add_argument("uri", metavar="URI", help="docker://[USER@][REGISTRY#]IMAGE[:TAG|@DIGEST]")
    getting.set_defaults(run=measured("importer", _get))
    releasing = actions.add_parser("release", help="give back what the step got", description="See importer.")
    releasing.set_defaults(run=_release)


def script() -> NoReturn:
    """The program ``fastpull-importer``: pyxis gives it the action as its first argument."""
    fastpull_script(["importer", *sys.argv[1:]])


def _get(options: argparse.Namespace, metrics: fastpull.metrics.Metrics) -> int:
    console = LineConsole(verbose=True)
    importer = fastpull.Importer(on_event=metrics.beside(console.on_event))
    image = run(importer.get(options.uri))
    console.result(image, f"{options.uri}: {size_of(image.size)}, made from {image.source}")
    sys.stdout.buffer.write(os.fsencode(image.path) + b"\n")
    return 0


def _release(_: argparse.Namespace) -> int:
    fastpull.Importer().release()
    return 0
