"""Credentials: what a client presents to a registry, and where it was found."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from fastpull.config.secret import Secret
from fastpull.errors import InvalidSetting

NO_SECRET = Secret()


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials for one registry, or for its token server.

    Attributes:
        username: the user of the password; empty with a registry token.
        password: the password for Basic authorization or a token server.
        origin: where the credentials were found, for messages; never contains the secret.
        identity_token: an OAuth2 refresh token, used in place of the password.
        registry_token: a bearer token, used as it is in place of everything else.
        is_renewable: whether a program issued the credentials and may issue fresh ones.
    """

    username: str
    password: Secret = NO_SECRET
    origin: str = ""
    identity_token: Secret = NO_SECRET
    registry_token: Secret = NO_SECRET
    is_renewable: bool = False

    def __post_init__(self) -> None:
        if any(ord(character) < 32 or ord(character) == 127 for character in self.username + self.password.reveal()):
            raise InvalidSetting(self.origin, "the user name or password has control characters")
        if ":" in self.username:
            raise InvalidSetting(self.origin, "the user name has a colon, which separates it from the password")

    @property
    def basic(self) -> str:
        """The value of an ``Authorization`` header. Spec: RFC 7617."""
        pair = f"{self.username}:{self.password.reveal()}"
        return "Basic " + base64.b64encode(pair.encode()).decode()

    @property
    def kind(self) -> str:
        """The kind of the secret, in words."""
        if self.registry_token:
            return "registry token"
        return "identity token" if self.identity_token else "password"

    def __str__(self) -> str:
        user = f"{self.username!r}" if self.username else "the bearer of a token"
        return f"{user} of {self.origin}"
