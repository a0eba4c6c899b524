"""``fastpull pull``: an image becomes a root filesystem."""

from __future__ import annotations

import argparse
from typing import Any

import fastpull
from fastpull.cli.arguments import SOURCE_HELP, add_client_arguments, add_output_arguments, settings_of
from fastpull.cli.console import Console, console_for
from fastpull.cli.running import run
from fastpull.cli.words import size_of
from fastpull.errors import FastpullError

_EPILOG = """\
examples:
  fastpull pull debian:12 -o rootfs/
  fastpull pull docker://registry.example.org:5000/ml/app:v1 -o /scratch/app/ --force
  fastpull pull nvcr.io#nvidia/pytorch:24.01-py3 -o pytorch/ --platform linux/arm64
  fastpull pull oci:layout:v1 -o rootfs/
  digest=$(fastpull pull -q debian:12 -o rootfs/)

An interrupted pull leaves nothing at the output; what was downloaded stays in the cache and is not fetched again.
Credentials are read from Docker's config.json, as docker login writes it.
"""


def add_verb(verbs: Any) -> None:
    """Adds the verb to the command."""
    parser = verbs.add_parser(
        "pull",
        help="make an image's root filesystem",
        description="Makes an image's root filesystem. Prints the digest of its manifest.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
    parser.add_argument("-o", "--output", metavar="DIR/", required=True, help="made; an empty directory is replaced")
    parser.add_argument("--force", action="store_true", help="replace the output whatever it is")
    parser.add_argument(
        "--owner",
        choices=("keep", "me"),
        help="keep: owners, modes and devices as in the image, root's default; "
        "me: all is yours, without setuid bits and devices, everybody else's default",
    )
    parser.add_argument(
        "--sync", action="store_true", default=None, help="have cache and output on their disks before they appear"
    )
    add_client_arguments(parser)
    add_output_arguments(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    settings = settings_of(options)
    sink = fastpull.sink_for(options.output, force=options.force, owner=options.owner)
    with console_for(options) as console:
        try:
            report = run(_pull(options, settings, sink, console))
        except FastpullError as error:
            console.failure(error)
            return error.exit_code
    console.result(report, _words(report), str(report.image.digest))
    return 0


async def _pull(
    options: argparse.Namespace, settings: fastpull.Settings, sink: fastpull.Sink, console: Console
) -> fastpull.PullReport:
    async with fastpull.Client(settings, on_event=console.on_event) as client:
        return await client.pull(options.source, sink, options.platform)


def _words(report: fastpull.PullReport) -> str:
    layers = len(report.image.layers)
    cached = f", {report.cached_layers} of {layers} layers were cached" if report.cached_layers else ""
    return (
        f"{report.output.path}: {report.output.inodes} inodes, {size_of(report.unpacked)} from "
        f"{size_of(report.image.size)} in {report.seconds:.1f} s{cached}"
    )
