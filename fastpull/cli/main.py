"""The entry of the command: arguments, errors, exit codes."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import fastpull
from fastpull.cli.running import INTERRUPTED, Interrupted
from fastpull.cli.words import error_summary
from fastpull.errors import FastpullError, InvalidInput

_VERBS = ("pull", "warm", "inspect", "cache", "enroot", "importer", "config", "demo")
"""The verbs in the order of the help; each has its own module."""

_DESCRIPTION = "Turn container images into root filesystems, in one pass, without root and without a daemon."
_EPILOG = """\
examples:
  fastpull pull debian:12 -o rootfs/                       from Docker Hub into a directory
  fastpull pull docker://nvcr.io/nvidia/pytorch:24.01-py3 -o pytorch/
  fastpull pull oci:layout:v1 -o rootfs/                   from an OCI layout on the disk
  fastpull pull debian:12 -o image.tar                     as one tar; with -o - to stdout
  fastpull warm -f images.txt --jobs 4                     into the cache only
  fastpull inspect quay.io/fedora/fedora:41                show manifest, config and layers
  fastpull cache ls                                        list the images in the cache
  fastpull importer get docker://debian:12                 what pyxis calls
  fastpull config                                          show the settings and their origins
  fastpull demo                                            try it without a network

exit codes:
  0 done             3 invalid input        10 connection failed   11 unusable answer
  12 access denied   13 forbidden by policy 20 digest mismatch     21 not a container image
  22 corrupt layer   23 malformed tar       24 invalid layer       25 limit exceeded
  30 cache           31 output              40 MPI job             130 interrupted
  1 any other error
"""


class _Parser(argparse.ArgumentParser):
    """A parser that exits with the code of invalid input."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(one) for one in action.choices]
            near = difflib.get_close_matches(str(value), choices, 1)
            advice = f"did you mean {near[0]}?" if near else f"choose from {', '.join(choices)}"
            raise argparse.ArgumentError(action, f"invalid choice: {value!r} ({advice})")

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(InvalidInput.exit_code, f"{self.prog}: error: {message}\n")


def make_parser(verb: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Args:
        verb: the only verb to add. Loading the modules of all verbs takes longer than some verbs run.
    """
    parser = _Parser(
        "fastpull", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"fastpull {fastpull.__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for name in (verb,) if verb in _VERBS else _VERBS:
        import_module(f"fastpull.cli.{name}_cmd").add_verb(verbs)
    return parser


def script(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and end the process, without the interpreter's own teardown, which takes 40 ms."""
    try:
        code = main(arguments)
    except SystemExit as ended:  # argparse has printed the help or an error
        code = ended.code if isinstance(ended.code, int) else 0
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    if "mpi4py" in sys.modules:
        sys.exit(code)  # without MPI_Finalize, MPICH's launcher kills the other ranks
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
    options = make_parser(arguments[0] if arguments else None).parse_args(arguments)
    try:
        with _log(options):
            code: int = options.run(options)
        sys.stdout.flush()
    except Interrupted:
        print("fastpull: interrupted; downloaded data stays in the cache", file=sys.stderr)
        return INTERRUPTED
    except FastpullError as error:
        if getattr(options, "json", False):
            print(json.dumps({"event": "error", **error_summary(error)}), flush=True)
        print(f"fastpull: error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # fastpull's own errors are handled above, so this one is standard output's
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        if not isinstance(error, BrokenPipeError):
            print(f"fastpull: error: cannot write to standard output: {error.strerror}", file=sys.stderr)
        return 1
    return code


def _log(options: argparse.Namespace) -> contextlib.AbstractContextManager[None]:
    if getattr(options, "verbose", 0) < 2:
        return contextlib.nullcontext()
    from fastpull.cli.debug_log import debug_log  # noqa: PLC0415  # few commands log

    return debug_log()
