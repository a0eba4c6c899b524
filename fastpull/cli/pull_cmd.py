"""``fastpull pull``: an image becomes a root filesystem."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from typing import Any

import fastpull
from fastpull.cli.arguments import (
    SOURCE_HELP,
    add_client_arguments,
    add_limit_arguments,
    add_output_arguments,
    read_environment,
    settings_of,
)
from fastpull.cli.console import Console, console_for
from fastpull.cli.running import run
from fastpull.cli.words import size_of
from fastpull.errors import FastpullError, InvalidSetting

_EPILOG = """\
examples:
  fastpull pull debian:12                                     makes debian+12.sqsh
  fastpull pull nvcr.io#nvidia/pytorch:24.01-py3 -o pytorch.sqsh --compression zstd:3
  fastpull pull debian:12 -o rootfs/
  fastpull pull docker://registry.example.org:5000/ml/app:v1 -o /scratch/app/ --force
  fastpull pull debian:12 -o arm/ --platform linux/arm64
  fastpull pull oci:layout:v1 -o rootfs/
  fastpull pull debian:12 -o image.tar
  fastpull pull debian:12 -o - | podman import - debian:12
  fastpull pull --edf pytorch -o pytorch.sqsh                 what ~/.edf/pytorch.toml names
  digest=$(fastpull pull -q debian:12 -o rootfs/)
  fastpull pull debian:12 -o bundle/ --for bundle             then: runc run -b bundle/ name
  fastpull pull debian:12 --for enroot --for charliecloud
  fastpull pull debian:12 -o rootfs/ --trace pull.json        where does the time go?

An interrupted pull leaves nothing at the output; what was downloaded stays in the cache and is not fetched again.
Credentials are read from Docker's config.json, as docker login writes it.
"""


def add_verb(verbs: Any) -> None:
    """Adds the verb to the command."""
    parser = verbs.add_parser(
        "pull",
        help="make an image's root filesystem",
        description="Makes an image's root filesystem. Prints the digest of its manifest, with -o - to stderr.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("source", metavar="SOURCE", nargs="?", help=SOURCE_HELP)
    what.add_argument(
        "--edf", metavar="FILE", help="take the source from an environment definition file, or a name in EDF_PATH"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="FILE.sqsh (.squashfs, .sqfs); DIR/, made, or replaced if it is empty; FILE.tar; or - for a tar to "
        "stdout; by default NAME+TAG.sqsh in the current directory",
    )
    parser.add_argument("--format", choices=("dir", "squashfs", "tar"), help="of the output, whatever its name")
    parser.add_argument(
        "--for",
        dest="runtimes",
        metavar="RUNTIME",
        action="append",
        choices=fastpull.RUNTIMES,
        default=[],
        help=f"put in, or beside it, what a runtime wants: {', '.join(fastpull.RUNTIMES)}; may be given several times",
    )
    parser.add_argument("--force", action="store_true", help="replace what is there; a file only by a file")
    parser.add_argument(
        "--owner",
        choices=("keep", "me"),
        help="keep: owners, modes and devices as in the image, root's default; "
        "me: all is yours, without setuid bits and devices, everybody else's default; directories only",
    )
    parser.add_argument(
        "--compression",
        metavar="NAME[:LEVEL]",
        help="of a squashfs image: zstd[:1-22] (zstd:1), gzip[:1-9], lz4, xz, or none for files as they are",
    )
    parser.add_argument("--block-size", metavar="SIZE", help="of a squashfs image, from 4K to 1M (128K)")
    parser.add_argument(
        "--no-fragments", action="store_true", help="small files do not share blocks of a squashfs image"
    )
    parser.add_argument(
        "--mtime", type=int, metavar="SECONDS", help="of everything in a squashfs image or a tar, since the epoch"
    )
    parser.add_argument(
        "--sync", action="store_true", default=None, help="have cache and output on their disks before they appear"
    )
    add_client_arguments(parser)
    add_limit_arguments(parser)
    add_output_arguments(parser)
    parser.add_argument(
        "--trace", metavar="FILE", help="write a timeline of the pull, also of one that fails, for ui.perfetto.dev"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    settings = settings_of(options)
    options.source = _source(options)
    output = options.output
    if output is None and options.format not in (None, "squashfs"):
        raise InvalidSetting(f"--format {options.format}", "name the output with -o")
    for runtime, form in (("bundle", "NAME/"), ("shifter", "ID.squashfs")):
        if output is None and runtime in options.runtimes:
            raise InvalidSetting(f"--for {runtime}", f"name the output with -o {form}")
    if output is None:
        output = _default_output(options.source)
    to_stdout = output == "-"
    if to_stdout and options.json:
        raise InvalidSetting("--json", "standard output cannot take events beside the tar, name a file")
    sink = fastpull.sink_for(
        output,
        form=options.format,
        force=options.force,
        owner=options.owner,
        compression=options.compression,
        block_size=None if options.block_size is None else fastpull.parse_size(options.block_size),
        fragments=False if options.no_fragments else None,
        mtime=options.mtime,
    )
    trace_file = _trace_file(options.trace, output)
    with console_for(options, sys.stderr if to_stdout else None) as console:
        try:
            with trace_file as trace:
                report = run(_pull(options, settings, sink, console, trace))
        except FastpullError as error:
            console.failure(error)
            return error.exit_code
    console.result(report, _words(report), str(report.image.digest))
    return 0


def _source(options: argparse.Namespace) -> str:
    """The source that the command line or an environment definition file names."""
    if options.edf is None:
        source: str = options.source
        return source
    with console_for(options, sys.stderr) as console:
        found = read_environment(options.edf, console, verbose=options.verbose)
    if found.image_file is not None:
        raise InvalidSetting(found.image_file, f"{found.path} names an image that is there already, nothing to pull")
    if not found.image:
        raise InvalidSetting(found.path, "this environment has no image")
    return found.image


async def _pull(
    options: argparse.Namespace,
    settings: fastpull.Settings,
    sink: fastpull.Sink,
    console: Console,
    trace: fastpull.Trace | None,
) -> fastpull.PullReport:
    async with fastpull.Client(settings, on_event=console.on_event) as client:
        return await client.pull(options.source, sink, options.platform, runtimes=options.runtimes, trace=trace)


def _trace_file(path: str | None, output: str) -> contextlib.AbstractContextManager[fastpull.Trace | None]:
    if path is None:
        return contextlib.nullcontext()
    if output != "-":
        inner, outer = os.path.realpath(path), os.path.realpath(output)
        if os.path.commonpath([inner, outer]) == outer:
            raise InvalidSetting(path, "the output will be there, write the trace elsewhere")
    return fastpull.TraceFile(path)


def _default_output(source: str) -> str:
    """The name that enroot would choose: ``NAME+TAG.sqsh``, with ``+`` for each ``/``."""
    kind, colon, rest = source.partition(":")
    if colon and kind == "oci":
        path, _, tag = rest.partition("@")[0].rpartition(":")
        name = os.path.basename((path or tag).rstrip("/")) + (f"+{tag}" if path else "")
    else:
        reference = fastpull.Reference.parse(source.removeprefix("docker://"))
        tag = reference.tag or (reference.digest.short if reference.digest else "")
        name = f"{reference.repository.removeprefix('library/')}+{tag}"
    if not name.strip("+"):
        raise InvalidSetting(source, "no name can be made of this source, choose one with -o")
    return re.sub(r"[/:]", "+", name) + ".sqsh"


def _words(report: fastpull.PullReport) -> str:
    output, layers = report.output, len(report.image.layers)
    sizes = f"{size_of(report.unpacked)} from {size_of(report.image.size)}"
    words = [f"{output.path}: {output.inodes} inodes, {sizes} in {report.seconds:.1f} s"]
    if isinstance(output, fastpull.SquashfsReport):
        ratio = output.content_size / output.size
        words.append(f"{size_of(output.size)} on the disk ({output.compression}, {ratio:.2f} to 1)")
        if output.duplicates:
            words.append(f"{output.duplicates} duplicates of {size_of(output.duplicate_bytes)}")
        if output.hole_bytes:
            words.append(f"{size_of(output.hole_bytes)} of holes")
    if report.cached_layers:
        words.append(f"{report.cached_layers} of {layers} layers were cached")
    line = ", ".join(words)
    return f"{line}\n{report.bottleneck}" if report.bottleneck else line
