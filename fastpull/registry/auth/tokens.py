"""Token servers: what a bearer token is asked with, and what comes back.

Spec: distribution's docs/spec/auth/token.md (GET) and docs/spec/auth/oauth.md (POST).
"""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastpull.config.secret import Secret
from fastpull.errors import MalformedDocument, RateLimited, UnexpectedAnswer
from fastpull.oci.json import JsonDocument
from fastpull.registry.http.retry import retry_after_seconds
from fastpull.registry.http.urls import host_of, parse_untrusted_url, redacted

if TYPE_CHECKING:
    from yarl import URL

    from fastpull.registry.auth.challenges import Challenge
    from fastpull.registry.auth.credentials import Credentials
    from fastpull.registry.http.response import Response
    from fastpull.registry.http.transport import Transport

CLIENT_ID = "fastpull"
_MAX_BODY = 1 << 20
_MIN_LIFETIME_SECONDS = 60.0
_EARLY = 0.9
_NO_SUCH_WAY = frozenset({404, 405})  # how a server says that it knows the other method only
_REFUSED = frozenset({400, 401, 403})


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token.

    Attributes:
        header: the value of ``Authorization``.
        expires: when a new one should be fetched, by ``time.monotonic()``; somewhat before the server's own time.
    """

    header: Secret
    expires: float


def scopes_of(scope: str, challenge: Challenge) -> list[str]:
    """What to ask for: what the request needs, and what the host said besides."""
    said = challenge.parameters.get("scope", "").split()
    return [scope, *(one for one in said if one != scope)]


def realm_of(challenge: Challenge, registry_url: URL) -> URL:
    """The URL of the token server that a registry names.

    Raises:
        UnexpectedAnswer: it is no URL, or less secure than the registry.
    """
    realm = parse_untrusted_url(challenge.parameters.get("realm", ""))
    if realm is None:
        raise UnexpectedAnswer(redacted(registry_url), "a challenge whose realm is no URL", 401)
    if realm.scheme == "http" and registry_url.scheme == "https":
        raise UnexpectedAnswer(redacted(registry_url), "a token server that is less secure than the registry", 401)
    return realm


@dataclass(frozen=True, slots=True)
class TokenServer:
    """Who gives out tokens for a registry.

    Attributes:
        transport: to reach it with.
        realm: of the challenge.
        service: of the challenge; empty if it has none.
        sender: the registry's host, that named the realm.
    """

    transport: Transport
    realm: URL
    service: str
    sender: str

    async def fetch(self, scopes: list[str], credentials: Credentials | None) -> Token | None:
        """Fetches a token, by the method that suits the credentials, and by the other if the server has not this one.

        Args:
            scopes: to be allowed.
            credentials: None for an anonymous client.

        Returns:
            None if the server refuses.

        Raises:
            RateLimited, UnexpectedAnswer, MalformedDocument, TransportError: it does not do its part.
        """
        ways = [self._get(scopes, credentials)]
        if credentials is not None:
            ways.insert(0 if credentials.identity_token else 1, self._post(scopes, credentials))
        for number, way in enumerate(ways, 1):
            started = time.monotonic()
            async with way as answer:
                if answer.status in _REFUSED:
                    await answer.error_detail()  # not redacted: it may repeat what it was given
                    return None
                if answer.status in _NO_SUCH_WAY and number < len(ways):
                    continue
                pause = self.transport.apply_retry_after(answer, retry_after_seconds(answer.headers))
                if answer.status == 429:
                    raise RateLimited(host_of(self.realm), pause)
                if answer.status != 200:
                    raise UnexpectedAnswer(redacted(self.realm), "no token", answer.status)
                body = await answer.body(_MAX_BODY)
            return _token(body, self.realm, started)
        return None

    def _get(self, scopes: list[str], credentials: Credentials | None) -> AbstractAsyncContextManager[Response]:
        query = [("service", self.service)] if self.service else []
        query += [("scope", scope) for scope in scopes]
        headers = {"Authorization": credentials.basic} if credentials else {}
        return self.transport.request("GET", self.realm.extend_query(query), headers, referrer=self.sender)

    def _post(self, scopes: list[str], credentials: Credentials) -> AbstractAsyncContextManager[Response]:
        form = {"client_id": CLIENT_ID, "service": self.service, "scope": " ".join(scopes)}
        if credentials.identity_token:
            form |= {"grant_type": "refresh_token", "refresh_token": credentials.identity_token.reveal()}
        else:
            form |= {"grant_type": "password", "username": credentials.username}
            form |= {"password": credentials.password.reveal()}
        return self.transport.request("POST", self.realm, {}, form=form, referrer=self.sender)


def _token(body: bytes, realm: URL, started: float) -> Token:
    subject = f"the token of {host_of(realm)}"
    document = JsonDocument.parse(body, subject)
    token = document.text_or("token", "") or document.text_or("access_token", "")
    if not token or not token.isascii() or not token.isprintable():
        raise MalformedDocument(subject, "no usable token")
    lifetime = _MIN_LIFETIME_SECONDS  # counted from here: the server's clock may be another
    if "expires_in" in document:
        lifetime = max(lifetime, float(document.integer("expires_in")))
    return Token(Secret(f"Bearer {token}"), started + _EARLY * lifetime)
