"""``fastpull importer``: get and release squashfs images for the steps of Slurm jobs, called by pyxis."""

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
  fastpull importer get docker://nvcr.io#nvidia/pytorch:24.01-py3    print the path of a squashfs image
  fastpull importer release                                          the step no longer needs its images

pyxis calls fastpull-importer, which does the same: importer=/usr/bin/fastpull-importer in plugstack.conf.
Settings come from configuration files and FASTPULL_*. SLURM_JOB_ID and SLURM_STEP_ID name the step.
"""


def add_verb(verbs: Any) -> None:
    """Add the verb and its actions to the command."""
    parser = verbs.add_parser(
        "importer",
        help="get squashfs images for pyxis",
        description="Get squashfs images for the steps of Slurm jobs, by the importer protocol of pyxis.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    getting = actions.add_parser(
        "get",
        help="print the path of an image's squashfs file",
        description="Print the path of an image's squashfs file, and keep the file for the step.",
    )
    getting.add_argument("uri", metavar="URI", help="docker://[USER@][REGISTRY#]IMAGE[:TAG|@DIGEST]")
    getting.set_defaults(run=measured("importer", _get))
    releasing = actions.add_parser(
        "release", help="release the images of the step", description="Release the images of the step on this node."
    )
    releasing.set_defaults(run=_release)


def script() -> NoReturn:
    """Run ``fastpull-importer``, whose first argument is the action."""
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
