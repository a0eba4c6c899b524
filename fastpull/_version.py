"""The version, read by pyproject.toml, too."""

from __future__ import annotations

__version__ = "0.1.0"
