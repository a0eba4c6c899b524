"""A client of the distribution specification's pull operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastpull._lazy import lazy_face

if TYPE_CHECKING:
    from fastpull.registry.auth.keyring import CredentialLocation, CredentialSearch, Keyring

__all__ = [
    "CredentialLocation",
    "CredentialSearch",
    "Keyring",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_face(
        __name__,
        {
            "fastpull.registry.auth.keyring": (
                "CredentialLocation",
                "CredentialSearch",
                "Keyring",
            ),
        },
    )
