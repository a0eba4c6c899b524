"""``fastpull pull``: make an image's root filesystem."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from typing import TYPE_CHECKING, Any

import fastpull
from fastpull.cli.arguments import (
    SOURCE_HELP,
    add_client_arguments,
    add_limit_arguments,
    add_output_arguments,
    add_settings,
    read_environment,
    settings_of,
)
from fastpull.cli.console import console_for
from fastpull.cli.measured import measured
from fastpull.cli.mpi import add_mpi_arguments, run_on_nodes
from fastpull.cli.running import run
from fastpull.cli.words import size_of
from fastpull.errors import FastpullError, InvalidSetting

if TYPE_CHECKING:
    from fastpull.progress import OnEvent

_EPILOG = """\
examples:
  fastpull pull debian:12                                     makes debian+12.sqsh
  fastpull pull nvcr.io#nvidia/pytorch:24.01-py3 -o pytorch.sqsh --compression zstd:3
  fastpull pull debian:12 -o rootfs/
  fastpull pull docker://registry.example.org:5000/ml/app:v1 -o /scratch/app/ --force
  fastpull pull debian:12 -o arm/ --platform linux/arm64
  fastpull pull oci:layout:v1 -o rootfs/
  fastpull pull docker-archive:saved.tar.gz -o app.sqsh
  fastpull pull ./saved.tar                                   the same, or an OCI archive; its content decides
  fastpull pull docker-daemon:app:v1                          an image that docker build made
  fastpull pull debian:12 --pull missing                      ask the registry only if the cache has no such image
  fastpull pull debian:12 -o image.tar                        or image.tar.gz, image.tar.zst
  fastpull pull debian:12 -o - | podman import - debian:12
  fastpull pull --edf pytorch -o pytorch.sqsh                 the image of ~/.edf/pytorch.toml
  digest=$(fastpull pull -q debian:12 -o rootfs/)
  fastpull pull debian:12 -o bundle/ --for bundle             then run: runc run -b bundle/ name
  fastpull pull debian:12 --for enroot --for charliecloud
  fastpull pull debian:12 -o image.sqsh --keep-images         the next pull takes it from the cache
  srun --mpi=pmix fastpull pull --mpi debian:12 -o /local/debian.sqsh
  fastpull pull debian:12 -o rootfs/ --trace pull.json        write a timeline

On a terminal, # is the part of a layer that is verified and unpacked, = the part that is downloaded or cached.
An interrupted pull leaves nothing at the output. Downloaded data stays in the cache, and the next pull resumes.
Logins are those of podman, skopeo, docker and enroot: fastpull inspect --auth HOST shows which one is used.
"""


def add_verb(verbs: Any) -> None:
    """Add the verb to the command."""
    parser = verbs.add_parser(
        "pull",
        help="make an image's root filesystem",
        description="Make an image's root filesystem. Prints the manifest's digest on stdout, or with -o - on stderr.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("source", metavar="SOURCE", nargs="?", help=SOURCE_HELP)
    what.add_argument(
        "--edf",
        metavar="FILE",
        help="take the source from an environment definition file, by path or by name in EDF_PATH",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="PATH",
        help="FILE.sqsh (.squashfs, .sqfs); DIR/, which must be absent or empty; FILE.tar, FILE.tar.gz (.tgz), "
        "FILE.tar.zst (.tzst); or - for a tar on stdout (NAME+TAG.sqsh in the current directory)",
    )
    parser.add_argument(
        "--format",
        choices=("dir", "squashfs", "tar", "tar.gz", "tar.zst"),
        help="format of the output, whatever its name",
    )
    parser.add_argument(
        "--for",
        dest="runtimes",
        metavar="RUNTIME",
        action="append",
        choices=fastpull.runtimes.RUNTIMES,
        default=[],
        help=f"add the files of a runtime, inside or beside the output: {', '.join(fastpull.runtimes.RUNTIMES)}; "
        "may be repeated",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="replace an existing output, even of the same image: a file replaces a file; a directory replaces one "
        "that fastpull made or that holds a root filesystem",
    )
    parser.add_argument(
        "--replace-foreign",
        action="store_true",
        help="with --force: replace any other directory as well; never a home, a mount point, the cache or the current "
        "directory",
    )
    parser.add_argument(
        "--owner",
        choices=("keep", "me"),
        help="for directories. keep: owners, modes and devices of the image (root's default); "
        "me: all files are yours, without setuid bits and devices (other users' default)",
    )
    add_settings(parser, "compression", "block_size")
    parser.add_argument(
        "--no-fragments", action="store_true", help="store small files of a squashfs image in blocks of their own"
    )
    parser.add_argument(
        "--mtime",
        type=int,
        metavar="SECONDS",
        help="modification time of all files in a squashfs image or a tar, since the epoch",
    )
    parser.add_argument(
        "--hardlink",
        action="store_true",
        help="make a hard link to the cache's squashfs image, if it has one; do not write to the output",
    )
    parser.add_argument(
        "--digest-file", metavar="FILE", help="write the digest of the manifest to a file when the output is complete"
    )
    add_settings(parser, "keep_images", "share_images", "sync")
    add_mpi_arguments(parser)
    add_client_arguments(parser)
    add_limit_arguments(parser)
    add_output_arguments(parser)
    parser.add_argument(
        "--trace", metavar="FILE", help="write a timeline of the pull, even of one that fails, for ui.perfetto.dev"
    )
    add_settings(parser, "metrics")
    parser.set_defaults(run=measured("pull", _run))


def _run(options: argparse.Namespace, metrics: fastpull.metrics.Metrics) -> int:
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
        raise InvalidSetting("--json", "standard output takes the tar, so events have no place; name a file with -o")
    sink = fastpull.sink_for(
        output,
        form=options.format,
        force=options.force,
        replace_foreign=options.replace_foreign or None,
        owner=options.owner,
        compression=options.compression,
        block_size=None if options.block_size is None else settings.block_size,
        fragments=False if options.no_fragments else None,
        mtime=options.mtime,
        hard_link=options.hardlink or None,
        settings=settings,
    )
    _check_side_outputs(options, settings, output)
    if options.mpi:
        return _run_on_nodes(options, settings, output, sink, metrics)
    trace_file = _trace_file(options.trace, settings.cache)
    with console_for(options, sys.stderr if to_stdout else None) as console:
        try:
            with trace_file as trace:
                report = run(_pull(options, settings, sink, metrics.beside(console.on_event), trace))
        except FastpullError as error:
            console.failure(error)
            return error.exit_code
    metrics.add_stages(report.stages)
    console.result(report, _words(report), str(report.image.digest))
    return 0


def _run_on_nodes(
    options: argparse.Namespace,
    settings: fastpull.Settings,
    output: str,
    sink: fastpull.Sink,
    metrics: fastpull.metrics.Metrics,
) -> int:
    if output == "-":
        raise InvalidSetting("-o -", "with --mpi each node makes its own file or directory; name it with -o")
    if options.trace is not None:
        raise InvalidSetting("--trace", "a timeline is of one node; call fastpull without --mpi")

    async def work(
        client: fastpull.Client, source: str, options: argparse.Namespace
    ) -> tuple[fastpull.PullReport, str, str]:
        report = await client.pull(
            source, sink, options.platform, runtimes=options.runtimes, digest_file=options.digest_file
        )
        metrics.add_stages(report.stages)
        return report, _words(report), str(report.image.digest)

    recipe = sink.recipe if isinstance(sink, fastpull.Squashfs) else None
    return run_on_nodes(options, settings, [options.source], work, metrics, [output], recipe)


def _source(options: argparse.Namespace) -> str:
    """Return the source that the command line or an environment definition file names."""
    if options.edf is None:
        source: str = options.source
        return source
    with console_for(options, sys.stderr) as console:
        found = read_environment(options.edf, console, verbose=options.verbose)
    if found.image_file is not None:
        raise InvalidSetting(
            found.image_file, f"{found.path} names an existing image file, so there is nothing to pull"
        )
    if not found.image:
        raise InvalidSetting(found.path, "this environment definition file names no image")
    return found.image


async def _pull(
    options: argparse.Namespace,
    settings: fastpull.Settings,
    sink: fastpull.Sink,
    on_event: OnEvent,
    trace: fastpull.Trace | None,
) -> fastpull.PullReport:
    async with fastpull.Client(settings, on_event=on_event) as client:
        return await client.pull(
            options.source,
            sink,
            options.platform,
            runtimes=options.runtimes,
            trace=trace,
            digest_file=options.digest_file,
        )


def _check_side_outputs(options: argparse.Namespace, settings: fastpull.Settings, output: str) -> None:
    """Raise InvalidSetting for a file that would be inside the output or replace another file."""
    files = {"--trace": options.trace, "--digest-file": options.digest_file, "--metrics": settings.metrics}
    taken = {} if output == "-" else {"the output": os.path.realpath(output)}
    for flag, path in files.items():
        if path in ("", "-") or (path is not None and path.endswith("/") and flag != "--metrics"):
            raise InvalidSetting(f"{flag} {path}", "the value must be the path of a file")
        if path is None:
            continue
        inner = os.path.realpath(path)
        for other, outer in taken.items():
            if os.path.commonpath([inner, outer]) == outer:
                raise InvalidSetting(f"{flag} {path}", f"this path is taken by {other}; choose another file")
        taken[flag] = inner


def _trace_file(path: str | None, cache: str) -> contextlib.AbstractContextManager[fastpull.Trace | None]:
    return contextlib.nullcontext() if path is None else fastpull.sinks.TraceFile(path, keep_out=[cache])


def _default_output(source: str) -> str:
    """Return the name that enroot would choose: ``NAME+TAG.sqsh``, with ``+`` for each ``/``."""
    kind, colon, rest = source.partition(":")
    path, _, tag = rest.partition(":")
    is_local = fastpull.Client.local_path(source) is not None
    if is_local or (colon and kind in ("oci", "oci-archive")):
        path, _, tag = re.sub(r"@\w+:\w+$", "", source if is_local else rest).partition(":")
        name = _stem(path) + (f"+{tag.removeprefix('@')}" if tag else "")
    elif colon and kind == "docker-archive":
        name = _name_of(tag) if tag and not tag.startswith("@") else _stem(path) + tag.replace("@", "+")
    elif colon and kind in ("docker-daemon", "containers-storage"):
        name = rest[:19] if rest.startswith("sha256:") else _name_of(rest)
    else:
        name = _name_of(source.removeprefix("docker://"))
    if not name.strip("+"):
        raise InvalidSetting(source, "this source gives no file name; choose one with -o")
    return re.sub(r"[/:]", "+", name) + ".sqsh"


def _name_of(text: str) -> str:
    reference = fastpull.Reference.parse(text)
    tag = reference.tag or (reference.digest.short if reference.digest else "")
    return f"{reference.repository.removeprefix('library/')}+{tag}"


def _stem(path: str) -> str:
    """Return the last part of a path without an archive's suffix."""
    return re.sub(r"\.(tar(\.\w+)?|tgz|tzst|txz|tbz2?|oci)$", "", os.path.basename(path.rstrip("/")))


def _words(report: fastpull.PullReport) -> str:
    output, layers = report.output, len(report.image.layers)
    if report.was_there:
        return f"already there: {output.path} is {report.image.source} ({report.image.digest}); --force makes it again"
    sizes = f"{size_of(report.unpacked)} from {size_of(report.image.size)}"
    words = [f"{output.path}: {output.inodes} inodes, {sizes} in {report.seconds:.1f} s"]
    if isinstance(output, fastpull.sinks.SquashfsReport):
        if report.was_finished:
            words.append(f"{output.origin} from the finished image in the cache")
        ratio = output.content_size / output.size
        words.append(f"{size_of(output.size)} on the disk ({output.compression}, {ratio:.2f} to 1)")
        if output.duplicates:
            words.append(f"{output.duplicates} duplicates of {size_of(output.duplicate_bytes)}")
        if output.hole_bytes:
            words.append(f"{size_of(output.hole_bytes)} of holes")
    if report.cached_layers and not report.was_finished:
        words.append(f"{report.cached_layers} of {layers} layers were cached")
    line = ", ".join(words)
    return f"{line}\n{report.bottleneck}" if report.bottleneck else line
