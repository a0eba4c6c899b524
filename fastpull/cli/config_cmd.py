"""``fastpull config``: show the settings, and the origin of each."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from typing import Any

import fastpull
from fastpull.cli.arguments import add_login_arguments, add_settings, given_settings
from fastpull.cli.words import plain, table

_EPILOG = """\
examples:
  fastpull config
  fastpull config --json | jq -r .memory.origin
  FASTPULL_MEMORY=1G fastpull config --workers 4

Settings come from /etc/fastpull/config.toml, $XDG_CONFIG_HOME/fastpull/config.toml (or ~/.config/fastpull/config.toml),
the environment and the command line; a later one overrides an earlier one. docs/configuration.md has all settings.
"""
_OTHERS = ("FASTPULL_NO_EXTENSIONS", "FASTPULL_BENCH_", "FASTPULL_TESTS_")
"""Prefixes of variables that are not settings."""


def add_verb(verbs: Any) -> None:
    """Add the verb to the command."""
    parser = verbs.add_parser(
        "config",
        help="show the settings, and the origin of each",
        description="Show the effective settings, and the origin of each.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_settings(parser, *fastpull.config.SETTINGS)
    add_login_arguments(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    given = given_settings(options)
    fastpull.pipeline.check_settings(fastpull.Settings.load(**given))
    found = fastpull.config.effective_settings(**given)
    if options.json:
        print(
            json.dumps({one.setting.name: {"value": plain(one.value), "origin": one.origin} for one in found}, indent=2)
        )
    else:
        rows = [(one.setting.name, one.shown, one.origin) for one in found]
        print("\n".join(table(("SETTING", "VALUE", "FROM"), rows)))
    _warn_of_variables()
    return 0


def _warn_of_variables() -> None:
    known = {setting.variable for setting in fastpull.config.SETTINGS.values()}
    for name in sorted(os.environ):
        if name.startswith("FASTPULL_") and not name.startswith(_OTHERS) and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            advice = f" (did you mean {near[0]}?)" if near else ""
            print(f"fastpull: warning: {name} is not a setting{advice}", file=sys.stderr)
