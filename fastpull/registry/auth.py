"""Authorization: challenges, tokens, and which header goes with which request.

Spec: distribution-spec, Authentication; the token protocol is distribution's (docs/spec/auth/token.md); RFC 9110, 11.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from yarl import URL

from fastpull.errors import AccessDenied, MalformedDocument, UnexpectedAnswer
from fastpull.oci.json import Document
from fastpull.registry.transport import host_of, shown

if TYPE_CHECKING:
    from fastpull.registry.credentials import Credentials
    from fastpull.registry.transport import Transport

_MAX_TOKEN_BODY = 1 << 20
_DEFAULT_LIFETIME_SECONDS = 60.0
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110's token
_SCHEME = re.compile(rf"\s*,*\s*({_WORD})(?:\s+|$)")
_PARAMETER = re.compile(rf"\s*,*\s*({_WORD})\s*=\s*(?:({_WORD})|\"((?:[^\"\\]|\\.)*)\")")


@dataclass(frozen=True, slots=True)
class Challenge:
    """One way that a host offers to be authorized.

    Attributes:
        scheme: in lower case, such as ``bearer``.
        parameters: their names in lower case.
    """

    scheme: str
    parameters: dict[str, str]


def parse_challenges(header: str) -> list[Challenge]:
    """Reads a ``WWW-Authenticate`` header, which may hold several challenges. Spec: RFC 9110, 11.6.1."""
    found: list[Challenge] = []
    at = 0
    while match := _SCHEME.match(header, at):
        at = match.end()
        parameters: dict[str, str] = {}
        while parameter := _PARAMETER.match(header, at):
            name, plain, quoted = parameter.groups()
            parameters[name.lower()] = plain if plain is not None else re.sub(r"\\(.)", r"\1", quoted)
            at = parameter.end()
        found.append(Challenge(match[1].lower(), parameters))
    return found


@dataclass(frozen=True, slots=True)
class _Grant:
    header: str
    expires: float  # time.monotonic()


class Authorizer:
    """The authorization of one client to one registry.

    However many requests find their token expired at once, one token is fetched.

    Args:
        transport: to reach the token server with.
        registry: for messages.
        credentials: None for an anonymous client.
    """

    def __init__(self, transport: Transport, registry: str, credentials: Credentials | None) -> None:
        self._transport = transport
        self._registry = registry
        self._credentials = credentials
        self._grants: dict[str, _Grant] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    @property
    def identity(self) -> str:
        """Who is asking, for messages."""
        if self._credentials is None:
            return "asked without credentials"
        return f"as {self._credentials.username!r} of {self._credentials.origin}"

    def header(self, scope: str) -> str | None:
        """The ``Authorization`` that a request of this scope needs, as far as is known; None before a challenge."""
        grant = self._grants.get(scope)
        return grant.header if grant and time.monotonic() < grant.expires else None

    async def answer(self, challenges: list[Challenge], scope: str, refused: str | None, registry_url: URL) -> None:
        """Answers a 401, so that `header` has something better than what was refused.

        Args:
            challenges: of the answer.
            scope: of the request: ``repository:NAME:pull``.
            refused: the ``Authorization`` that was sent, or None.
            registry_url: that answered; a token server has to be as secure as it is.

        Raises:
            AccessDenied: there is nothing better.
            UnexpectedAnswer, MalformedDocument, TransportError: the token server does not do its part.
        """
        async with self._locks.setdefault(scope, asyncio.Lock()):
            known = self._grants.get(scope)
            if known is not None and known.header != refused and time.monotonic() < known.expires:
                return  # somebody else has just fetched it
            self._grants.pop(scope, None)
            self._grants[scope] = await self._grant(challenges, scope, refused, registry_url)

    async def _grant(self, challenges: list[Challenge], scope: str, refused: str | None, registry_url: URL) -> _Grant:
        by_scheme = {challenge.scheme: challenge for challenge in reversed(challenges)}
        if bearer := by_scheme.get("bearer"):
            grant = await self._fetch_token(bearer, scope, registry_url)
        elif "basic" in by_scheme and self._credentials is not None:
            grant = _Grant(self._credentials.basic, float("inf"))
        else:
            raise self._denied(scope)
        if grant.header == refused:
            raise self._denied(scope)
        return grant

    async def _fetch_token(self, challenge: Challenge, scope: str, registry_url: URL) -> _Grant:
        realm = self._realm(challenge, registry_url)
        query = {"scope": challenge.parameters.get("scope") or scope}
        if service := challenge.parameters.get("service"):
            query["service"] = service
        headers = {"Authorization": self._credentials.basic} if self._credentials else {}
        started = time.monotonic()
        async with self._transport.request("GET", realm.update_query(query), headers) as answer:
            if answer.status in (401, 403):
                raise self._denied(scope)
            if answer.status != 200:
                raise UnexpectedAnswer(shown(realm), "no token", answer.status)
            body = await answer.body(_MAX_TOKEN_BODY)
        subject = f"the token of {host_of(realm)}"
        document = Document.parse(body, subject)
        token = document.text_or("token", "") or document.text_or("access_token", "")
        if not token or not token.isascii() or not token.isprintable():
            raise MalformedDocument(subject, "no usable token")
        lifetime = _DEFAULT_LIFETIME_SECONDS
        if "expires_in" in document:
            lifetime = max(lifetime, float(document.integer("expires_in")))
        return _Grant(f"Bearer {token}", started + 0.9 * lifetime)

    def _realm(self, challenge: Challenge, registry_url: URL) -> URL:
        text = challenge.parameters.get("realm", "")
        try:
            realm = URL(text)
        except ValueError:
            realm = URL()
        if realm.scheme not in ("https", "http") or not realm.host:
            raise UnexpectedAnswer(shown(registry_url), f"a challenge whose realm is no URL: {text[:100]!r}", 401)
        if realm.scheme == "http" and registry_url.scheme == "https":
            raise UnexpectedAnswer(shown(registry_url), "a token server that is less secure than the registry", 401)
        return realm

    def _denied(self, scope: str) -> AccessDenied:
        return AccessDenied(scope.removeprefix("repository:").removesuffix(":pull"), self._registry, self.identity)
