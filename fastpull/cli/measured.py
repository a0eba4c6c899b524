"""Commands that add to the metrics file."""

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
    """Return a command that adds its counters and its exit code to the metrics file, if there is one.

    If the file cannot be written and the command line names it, the command does not begin. If a setting names it, the
    command warns and goes on, so that a site's setting makes no job fail.

    Args:
        command: the command's name.
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
    """Return the path of the metrics file; None if there is none, or it cannot be written."""
    try:
        settings = fastpull.Settings.load(metrics=given, cache=getattr(options, "cache", None))
    except InvalidSetting:
        return None  # the command fails with the same error
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
    print(f"fastpull: warning: metrics are not written: {error}", file=sys.stderr)
