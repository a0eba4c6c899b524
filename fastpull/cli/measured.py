"""Commands that tell a site's monitoring what they did."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TypeAlias

import fastpull
from fastpull.cli.running import INTERRUPTED, Interrupted
from fastpull.errors import FastpullError, InvalidSetting, OutputError

Work: TypeAlias = "Callable[[argparse.Namespace, fastpull.metrics.Metrics], int]"


def measured(command: str, work: Work) -> Callable[[argparse.Namespace], int]:
    """A command that adds to the metrics' file, if there is one, what it did and how it ended.

    Where the command line names a file that cannot be written, the command does not begin. Where a site's setting does,
    that is a warning: its jobs are not to fail of it.

    Args:
        command: its name.
        work: the command; returns its exit code.
    """

    def run(options: argparse.Namespace) -> int:
        given = getattr(options, "metrics", None)
        metrics, code = fastpull.metrics.Metrics(command), 1
        path = _checked(metrics, options, given)
        try:
            code = work(options, metrics)
        except FastpullError as error:
            code = error.exit_code
            raise
        except Interrupted:
            code = INTERRUPTED
            raise
        finally:
            if path is not None:
                try:
                    metrics.write(path, code)
                except OutputError as error:
                    _warn(error)
        return code

    return run


def _checked(metrics: fastpull.metrics.Metrics, options: argparse.Namespace, given: str | None) -> str | None:
    """The path of the metrics; None if there are to be none, or they cannot be written."""
    try:
        settings = fastpull.Settings.load(metrics=given, cache=getattr(options, "cache", None))
    except InvalidSetting:
        return None  # the command will end with that
    if settings.metrics is None:
        return None
    try:
        metrics.check(settings.metrics, [settings.cache])
    except OutputError as error:
        if given is not None:
            raise
        _warn(error)
        return None
    return settings.metrics


def _warn(error: OutputError) -> None:
    print(f"fastpull: warning: no metrics: {error}", file=sys.stderr)
