"""Commands that tell a site's monitoring what they did."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TypeAlias

import fastpull
from fastpull.cli.running import INTERRUPTED, Interrupted
from fastpull.errors import FastpullError, InvalidSetting, OutputError

Work: TypeAlias = "Callable[[argparse.Namespace, fastpull.Metrics], int]"


def measured(command: str, work: Work) -> Callable[[argparse.Namespace], int]:
    """A command that adds to the metrics' file, if there is one, what it did and how it ended.

    Args:
        command: its name.
        work: the command; returns its exit code.
    """

    def run(options: argparse.Namespace) -> int:
        metrics, code = fastpull.Metrics(command), 1
        try:
            code = work(options, metrics)
        except FastpullError as error:
            code = error.exit_code
            raise
        except Interrupted:
            code = INTERRUPTED
            raise
        finally:
            _write(metrics, getattr(options, "metrics", None), code)
        return code

    return run


def _write(metrics: fastpull.Metrics, given: str | None, code: int) -> None:
    try:
        path = fastpull.Settings.load(metrics=given).metrics
        if path is not None:
            metrics.write(path, code)
    except InvalidSetting:
        pass  # the command has ended with that
    except OutputError as error:
        print(f"fastpull: warning: no metrics: {error}", file=sys.stderr)
