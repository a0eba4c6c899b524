"""Credentials: what a registry is shown to know who asks, and where it was found."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from fastpull.config.secret import Secret
from fastpull.errors import InvalidSetting

NOBODY = Secret()


@dataclass(frozen=True, slots=True)
class Credentials:
    """What to show one registry, or the token server that it names.

    Attributes:
        username: goes with the password; empty with a registry token.
        password: for Basic access, or for a token server.
        origin: where they were found, for messages; never the secret itself.
        identity_token: an OAuth2 refresh token, in place of the password.
        registry_token: a token that is sent as it is, in place of all else.
        is_renewable: a program made them: asked again, it may give fresh ones.
    """

    username: str
    password: Secret = NOBODY
    origin: str = ""
    identity_token: Secret = NOBODY
    registry_token: Secret = NOBODY
    is_renewable: bool = False

    def __post_init__(self) -> None:
        if any(ord(character) < 32 or ord(character) == 127 for character in self.username + self.password.reveal()):
            raise InvalidSetting(self.origin, "a user name or password with control characters")
        if ":" in self.username:
            raise InvalidSetting(self.origin, "a user name with a colon, which no registry could tell from a password")

    @property
    def basic(self) -> str:
        """The value of an ``Authorization`` header. Spec: RFC 7617."""
        pair = f"{self.username}:{self.password.reveal()}"
        return "Basic " + base64.b64encode(pair.encode()).decode()

    @property
    def kind(self) -> str:
        """What the secret is, in words."""
        if self.registry_token:
            return "registry token"
        return "identity token" if self.identity_token else "password"

    def __str__(self) -> str:
        who = f"{self.username!r}" if self.username else "the bearer of a token"
        return f"{who} of {self.origin}"
