"""The ``fastpull`` command: one module per verb, made of fastpull's public names only."""

from __future__ import annotations

from fastpull.cli.main import main, script

__all__ = ["main", "script"]
