"""Errors of invalid input."""

from __future__ import annotations

from dataclasses import dataclass

from fastpull.errors.base import FastpullError

# --- 3: invalid input


@dataclass(eq=False)
class InvalidInput(FastpullError, ValueError):
    """The caller gave something invalid."""

    exit_code = 3
    given: str
    reason: str

    def _message(self) -> str:
        return f"{self.reason}: {self.given!r}"


class InvalidReference(InvalidInput):
    """An image reference breaks the grammar."""

    def _hint(self) -> str:
        return "A reference is [HOST[:PORT]/]NAME[:TAG][@DIGEST], for example nvcr.io/nvidia/pytorch:24.01-py3"


class InvalidSource(InvalidReference):
    """A source breaks its grammar, or does not name one of several images."""

    def _hint(self) -> str:
        return "fastpull pull --help lists the forms of a source, for example docker-archive:FILE:NAME:TAG"


class InvalidDigest(InvalidInput):
    """A digest breaks the grammar, or names an unregistered algorithm."""

    def _hint(self) -> str:
        return "A digest is sha256: with 64 or sha512: with 128 lower-case hexadecimal digits"


class InvalidPlatform(InvalidInput):
    """A platform is not os/architecture[/variant]."""

    def _hint(self) -> str:
        return "A platform is OS/ARCHITECTURE[/VARIANT], for example linux/arm64/v8"


class InvalidSetting(InvalidInput):
    """An option, environment variable or configuration file holds an invalid value."""
