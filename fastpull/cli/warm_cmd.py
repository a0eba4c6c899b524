"""``fastpull warm``: bring images into the cache."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING, Any

import fastpull
from fastpull.cli.arguments import (
    SOURCE_HELP,
    add_client_arguments,
    add_output_arguments,
    add_settings,
    read_environment,
    settings_of,
)
from fastpull.cli.console import console_for
from fastpull.cli.measured import measured
from fastpull.cli.mpi import add_mpi_arguments, run_on_nodes
from fastpull.cli.running import run
from fastpull.errors import InvalidSetting

if TYPE_CHECKING:
    from fastpull.progress import OnEvent

_COMMENT = re.compile(r"(?:^|\s)#.*")
"""A comment. The # of REGISTRY#IMAGE follows no blank."""

_EPILOG = """\
examples:
  fastpull warm debian:12 quay.io/fedora/fedora:41
  fastpull warm -f images.txt --jobs 8 --cache /shared/fastpull
  squeue-images | fastpull warm -f -
  mpirun -n 500 --map-by node fastpull warm --mpi debian:12 --cache /local/fastpull
  fastpull warm --edf ~/.edf/pytorch.toml ~/.edf/jax.toml

A file has one source a line. Empty lines and comments are skipped: a # at the beginning or after a blank begins one.
An image that fails does not stop the others; the exit code is that of the first failure.
"""


def add_verb(verbs: Any) -> None:
    """Add the verb to the command."""
    parser = verbs.add_parser(
        "warm",
        help="bring images into the cache",
        description="Bring images into the cache and verify them. Prints digest and source of each.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sources", metavar="SOURCE", nargs="*", help=SOURCE_HELP)
    parser.add_argument(
        "-f", "--file", metavar="FILE", action="append", default=[], help="read sources from a file, or - for stdin"
    )
    parser.add_argument(
        "--edf",
        metavar="FILE",
        action="extend",
        nargs="+",
        default=[],
        help="take sources from environment definition files, by path or by name in EDF_PATH; image files are skipped",
    )
    parser.add_argument("--jobs", metavar="N", type=int, default=4, help="images at the same time (4)")
    add_settings(parser, "sync")
    add_mpi_arguments(parser)
    add_client_arguments(parser)
    add_output_arguments(parser)
    add_settings(parser, "metrics")
    parser.set_defaults(run=measured("warm", _run))


def _run(options: argparse.Namespace, metrics: fastpull.metrics.Metrics) -> int:
    if options.jobs < 1:
        raise InvalidSetting(str(options.jobs), "--jobs must be at least 1")
    if options.mpi and "-" in options.file:
        raise InvalidSetting("-f -", "with --mpi only one rank has a standard input; name a file")
    sources = [*options.sources, *(source for path in options.file for source in _read(path))]
    if not sources and not options.edf:
        raise InvalidSetting("warm", "no source given; name one, or a list of sources with -f")
    settings = settings_of(options)
    with console_for(options) as console:
        environments = [read_environment(name, console, verbose=options.verbose) for name in options.edf]
        sources += [found.image for found in environments if found.image and found.image_file is None]
        if options.mpi:
            return run_on_nodes(options, settings, list(dict.fromkeys(sources)), _warm_one, metrics)
        reports = run(_warm(sources, options, settings, metrics.beside(console.on_event)))
    for report in reports:
        if report.error is not None:
            console.failure(report.error)
        elif report.image is not None:
            console.result(report, "", f"{report.image.digest} {report.source}")
    return next((report.error.exit_code for report in reports if report.error is not None), 0)


async def _warm(
    sources: list[str], options: argparse.Namespace, settings: fastpull.Settings, on_event: OnEvent
) -> list[fastpull.WarmReport]:
    async with fastpull.Client(settings, on_event=on_event) as client:
        return await client.warm(sources, jobs=options.jobs, platform=options.platform)


async def _warm_one(
    client: fastpull.Client, source: str, options: argparse.Namespace
) -> tuple[fastpull.WarmReport, str, str]:
    [report] = await client.warm([source], platform=options.platform)
    if report.error is not None:
        raise report.error
    return report, "", f"{report.image.digest if report.image else ''} {source}"


def _read(path: str) -> list[str]:
    try:
        if path == "-":
            text = sys.stdin.read()
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(path, f"cannot read the list of sources ({error})") from error
    lines = (_COMMENT.sub("", line).strip() for line in text.splitlines())
    return [line for line in lines if line]
