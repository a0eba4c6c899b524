"""``fastpull enroot``: ``import`` and ``digest`` with enroot's own command line."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import fastpull
from fastpull.cli.arguments import add_client_arguments, add_limit_arguments, given_settings, settings_of
from fastpull.cli.console import Console, LineConsole
from fastpull.cli.running import run
from fastpull.errors import FastpullError, InvalidPlatform, OutputExists
from fastpull.progress import Warned

_EPILOG = """\
examples:
  fastpull enroot import docker://debian:12                          makes debian+12.sqsh
  fastpull enroot import -a aarch64 -o arm.sqsh docker://nvcr.io#nvidia/cuda:12.4.1-base-ubuntu22.04
  fastpull enroot digest docker://debian:12

fastpull reads those settings of enroot.conf and ENROOT_* that concern an import: CACHE_PATH (its subdirectory
fastpull), MAX_PROCESSORS, MAX_CONNECTIONS, ALLOW_HTTP, SQUASH_OPTIONS (-comp, -b, -Xcompression-level, -noD,
-no-fragments), certificates and proxies. fastpull's own settings override them. zstd takes the place of lzo.
"""
_URI_HELP = "docker://[USER@][REGISTRY#]IMAGE[:TAG][@DIGEST]"
_ENROOT_SETTINGS = ("cache", "workers", "connections", "insecure", "compression", "block_size")
"""Settings that enroot's settings may give."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le"}


def add_verb(verbs: Any) -> None:
    """Add the verb to the command."""
    parser = verbs.add_parser(
        "enroot",
        help="run import or digest with enroot's own arguments",
        description="Run `enroot import` or `enroot digest` with their arguments and settings.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    inner = parser.add_subparsers(metavar="VERB", required=True)
    imported = inner.add_parser("import", help="make an image for enroot", description="Make an image for enroot.")
    imported.add_argument("-o", "--output", metavar="FILE", help="file to make (IMAGE+TAG.sqsh)")
    imported.set_defaults(run=_run_import)
    digest = inner.add_parser("digest", help="print an image's digest", description="Print an image's digest.")
    digest.set_defaults(run=_run_digest)
    for one in (imported, digest):
        one.add_argument("-a", "--arch", metavar="ARCH", help="x86_64, aarch64 or ppc64le (this machine's)")
        one.add_argument("uri", metavar="URI", help=_URI_HELP)
        add_client_arguments(one)
        add_limit_arguments(one)


class _EnrootConsole(LineConsole):
    """Print lines as enroot does, after ``[INFO]``, ``[WARN]`` or ``[ERROR]``."""

    def __init__(self) -> None:
        super().__init__(verbose=False)

    def _say(self, line: str) -> None:
        for before, level in (("fastpull: error: ", "ERROR"), ("warning: ", "WARN"), ("", "INFO")):
            if line.startswith(before):
                print(f"[{level}] {line.removeprefix(before)}", file=sys.stderr, flush=True)
                return


def _run_import(options: argparse.Namespace) -> int:
    with _EnrootConsole() as console:
        try:
            enroot, uri = (
                fastpull.runtimes.EnrootSettings.load(os.environ),
                fastpull.runtimes.EnrootUri.parse(options.uri),
            )
            for note in enroot.notes:
                console.on_event(Warned(options.uri, note))
            output = os.path.abspath(options.output or uri.filename)
            settings = _settings(options, enroot)
            sink = fastpull.sink_for(
                output, form="squashfs", fragments=enroot.fragments, mtime=enroot.mtime, settings=settings
            )
            platform = _platform(options)
            _check_absent(output)
            run(_import(settings, str(uri.reference), sink, platform, console))
        except OutputExists as error:
            print(f"[ERROR] File already exists: {error.path}", file=sys.stderr)  # enroot's own words
            return error.exit_code
        except FastpullError as error:
            console.failure(error)
            return error.exit_code
    return 0


def _check_absent(output: str) -> None:
    """Raise OutputExists for an existing file, even of the same image, as enroot does."""
    if os.path.lexists(output):
        raise OutputExists(output, "file exists")


def _run_digest(options: argparse.Namespace) -> int:
    with _EnrootConsole() as console:
        try:
            enroot, uri = (
                fastpull.runtimes.EnrootSettings.load(os.environ),
                fastpull.runtimes.EnrootUri.parse(options.uri),
            )
            image = run(_resolve(options, _settings(options, enroot), str(uri.reference), console))
        except FastpullError as error:
            console.failure(error)
            return error.exit_code
    print(image.digest)
    return 0


async def _import(
    settings: fastpull.Settings, source: str, sink: fastpull.Sink, platform: str | None, console: Console
) -> None:
    async with fastpull.Client(settings, on_event=console.on_event) as client:
        await client.pull(source, sink, platform, runtimes=["enroot"])


async def _resolve(
    options: argparse.Namespace, settings: fastpull.Settings, source: str, console: Console
) -> fastpull.Image:
    async with fastpull.Client(settings, on_event=console.on_event) as client:
        return await client.resolve(source, _platform(options))


def _settings(options: argparse.Namespace, enroot: fastpull.runtimes.EnrootSettings) -> fastpull.Settings:
    """Return fastpull's own settings; enroot's take the place of defaults."""
    for name, value in enroot.environment:
        os.environ.setdefault(name, value)
    for one in fastpull.config.effective_settings(**given_settings(options)):
        if one.origin == "default" and one.setting.name in _ENROOT_SETTINGS:
            setattr(options, one.setting.name, getattr(enroot, one.setting.name))
    return settings_of(options)


def _platform(options: argparse.Namespace) -> str | None:
    if options.arch is None:
        given: str | None = options.platform
        return given
    if options.arch not in {*_ARCHITECTURES, *_ARCHITECTURES.values()}:
        raise InvalidPlatform(options.arch, f"an architecture is one of {', '.join(_ARCHITECTURES)}")
    return f"linux/{_ARCHITECTURES.get(options.arch, options.arch)}"
