"""Settings: their schema, where they come from, and the values that people write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull._lazy import lazy_face

if TYPE_CHECKING:
    from fastpull.config.access import Access
    from fastpull.config.limits import Limits
    from fastpull.config.schema import Setting
    from fastpull.config.secret import Secret
    from fastpull.config.settings import ACCESS, LIMITS, SETTINGS, Effective, Settings, effective_settings
    from fastpull.config.units import parse_age, parse_size

__all__ = [
    "ACCESS",
    "LIMITS",
    "SETTINGS",
    "Access",
    "Effective",
    "Limits",
    "Secret",
    "Setting",
    "Settings",
    "effective_settings",
    "parse_age",
    "parse_size",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_face(
        __name__,
        {
            "fastpull.config.access": ("Access",),
            "fastpull.config.limits": ("Limits",),
            "fastpull.config.schema": ("Setting",),
            "fastpull.config.secret": ("Secret",),
            "fastpull.config.settings": (
                "ACCESS",
                "LIMITS",
                "SETTINGS",
                "Effective",
                "Settings",
                "effective_settings",
            ),
            "fastpull.config.units": (
                "parse_age",
                "parse_size",
            ),
        },
    )
