"""Token servers: requests for bearer tokens and their responses.

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
_RENEWAL_SHARE = 0.9  # of the lifetime: then the token is renewed
_UNSUPPORTED = frozenset({404, 405})  # the server supports only the other method
_REFUSED = frozenset({400, 401, 403})


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token.

    Attributes:
        header: the value of ``Authorization``.
        expires: when to renew the token, by ``time.monotonic()``; somewhat before its expiry at the server.
    """

    header: Secret
    expires: float


def scopes_of(scope: str, challenge: Challenge) -> list[str]:
    """Return the scopes to request: that of the request, and those of the challenge."""
    offered = challenge.parameters.get("scope", "").split()
    return [scope, *(one for one in offered if one != scope)]


def realm_of(challenge: Challenge, registry_url: URL) -> URL:
    """Return the URL of the token server that a challenge names.

    Raises:
        UnexpectedAnswer: not a URL, or less secure than the registry.
    """
    realm = parse_untrusted_url(challenge.parameters.get("realm", ""))
    if realm is None:
        raise UnexpectedAnswer(redacted(registry_url), "a challenge without a valid URL as its realm", 401)
    if realm.scheme == "http" and registry_url.scheme == "https":
        raise UnexpectedAnswer(redacted(registry_url), "a token server that is less secure than the registry", 401)
    return realm


@dataclass(frozen=True, slots=True)
class TokenServer:
    """The server that issues tokens for a registry.

    Attributes:
        transport: the connections.
        realm: the realm of the challenge.
        service: the service of the challenge; empty if there is none.
        referrer: the registry's host, which named the realm.
    """

    transport: Transport
    realm: URL
    service: str
    referrer: str

    async def fetch(self, scopes: list[str], credentials: Credentials | None) -> Token | None:
        """Fetch a token with the method for the credentials, or with the other one if the server lacks the first.

        Args:
            scopes: the scopes to request.
            credentials: the credentials; None for an anonymous client.

        Returns:
            The token; None if the server refuses.

        Raises:
            RateLimited, UnexpectedAnswer, MalformedDocument, TransportError: the server failed.
        """
        requests = [self._get(scopes, credentials)]
        if credentials is not None:
            requests.insert(0 if credentials.identity_token else 1, self._post(scopes, credentials))
        for number, request in enumerate(requests, 1):
            started = time.monotonic()
            async with request as response:
                if response.status in _REFUSED:
                    await response.error_detail()  # not shown: it may echo the credentials
                    return None
                if response.status in _UNSUPPORTED and number < len(requests):
                    continue
                pause = self.transport.apply_retry_after(response, retry_after_seconds(response.headers))
                if response.status == 429:
                    raise RateLimited(host_of(self.realm), pause)
                if response.status != 200:
                    raise UnexpectedAnswer(redacted(self.realm), "no token", response.status)
                body = await response.body(_MAX_BODY)
            return _token(body, self.realm, started)
        return None

    def _get(self, scopes: list[str], credentials: Credentials | None) -> AbstractAsyncContextManager[Response]:
        query = [("service", self.service)] if self.service else []
        query += [("scope", scope) for scope in scopes]
        headers = {"Authorization": credentials.basic} if credentials else {}
        return self.transport.request("GET", self.realm.extend_query(query), headers, referrer=self.referrer)

    def _post(self, scopes: list[str], credentials: Credentials) -> AbstractAsyncContextManager[Response]:
        form = {"client_id": CLIENT_ID, "service": self.service, "scope": " ".join(scopes)}
        if credentials.identity_token:
            form |= {"grant_type": "refresh_token", "refresh_token": credentials.identity_token.reveal()}
        else:
            form |= {"grant_type": "password", "username": credentials.username}
            form |= {"password": credentials.password.reveal()}
        return self.transport.request("POST", self.realm, {}, form=form, referrer=self.referrer)


def _token(body: bytes, realm: URL, started: float) -> Token:
    subject = f"the token of {host_of(realm)}"
    document = JsonDocument.parse(body, subject)
    token = document.text_or("token", "") or document.text_or("access_token", "")
    if not token or not token.isascii() or not token.isprintable():
        raise MalformedDocument(subject, "no usable token")
    lifetime = _MIN_LIFETIME_SECONDS  # counted by this clock: the server's may differ
    if "expires_in" in document:
        lifetime = max(lifetime, float(document.integer("expires_in")))
    return Token(Secret(f"Bearer {token}"), started + _RENEWAL_SHARE * lifetime)
