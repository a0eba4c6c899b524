"""The command's entry: arguments, errors, exit codes."""

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
"""Each in its module, as the help lists them."""

_DESCRIPTION = "Turns container images into root filesystems, in one pass, without root and without a daemon."
_EPILOG = """\
examples:
  fastpull pull debian:12 -o rootfs/                       from Docker Hub into a directory
  fastpull pull docker://nvcr.io/nvidia/pytorch:24.01-py3 -o pytorch/
  fastpull pull oci:layout:v1 -o rootfs/                   from an OCI layout on the disk
  fastpull pull debian:12 -o image.tar                     as one tar; with -o - to stdout
  fastpull warm -f images.txt --jobs 4                     into the cache only
  fastpull inspect quay.io/fedora/fedora:41                what is it?
  fastpull cache ls                                        what is here?
  fastpull importer get docker://debian:12                 what pyxis calls
  fastpull config                                          which settings count, and why?
  fastpull demo                                            see it work, without a network

exit codes:
  0 done            3 invalid input       10 no connection     11 unusable answer    12 access denied
  13 forbidden here 20 wrong bytes        21 no image          22 corrupt layer      23 malformed tar
  24 refused by the layer rules           25 over a limit      30 cache              31 output
  40 ranks of a job 130 interrupted       1 anything else
"""


class _Parser(argparse.ArgumentParser):
    """Answers a wrong command line with the exit code of invalid input."""

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
    """The parser.

    Args:
        verb: the only one that will be asked for: loading what the others need takes longer than some of them run.
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
    """Runs the command, and ends the process without the interpreter's own clearing up, which takes 40 ms."""
    try:
        code = main(arguments)
    except SystemExit as ended:  # argparse has printed help, or what is wrong
        code = ended.code if isinstance(ended.code, int) else 0
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    if "mpi4py" in sys.modules:
        sys.exit(code)  # MPICH says good-bye to its launcher as the process ends, or that kills the other ranks
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
    options = make_parser(arguments[0] if arguments else None).parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except Interrupted:
        print("fastpull: interrupted; what was downloaded stays in the cache", file=sys.stderr)
        return INTERRUPTED
    except FastpullError as error:
        if getattr(options, "json", False):
            print(json.dumps({"event": "error", **error_summary(error)}), flush=True)
        print(f"fastpull: error: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # ours are above: it is standard output's
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        if not isinstance(error, BrokenPipeError):
            print(f"fastpull: error: cannot write to standard output: {error.strerror}", file=sys.stderr)
        return 1
    return code
