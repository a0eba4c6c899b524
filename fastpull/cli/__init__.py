"""The ``fastpull`` command: one module for each verb, made of public names only."""

from __future__ import annotations

from fastpull.cli.main import main, script

__all__ = ["main", "script"]
