"""The authorization of requests: which header each request gets, and how it is obtained.

Spec: distribution-spec, Authentication; the token protocol is distribution's (docs/spec/auth/token.md); RFC 9110, 11.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastpull.config.secret import Secret
from fastpull.errors import AccessDenied, FastpullError
from fastpull.registry.auth.tokens import Token, TokenServer, realm_of, scopes_of
from fastpull.registry.http.urls import host_of

if TYPE_CHECKING:
    from yarl import URL

    from fastpull.registry.auth.challenges import Challenge
    from fastpull.registry.auth.credentials import Credentials
    from fastpull.registry.auth.keyring import Keyring
    from fastpull.registry.http.transport import Transport

_FOREVER = float("inf")


class _ScopeState:
    """The state of one scope: the identity, the token, and the challenges that led to it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.token: Token | None = None
        self.challenges: list[Challenge] = []
        self.identity = "without credentials"
        self.failure: tuple[float, FastpullError] | None = None

    def valid_token(self) -> Token | None:
        return self.token if self.token and time.monotonic() < self.token.expires else None


class Authorizer:
    """The authorization of one client to one registry.

    A token belongs to one registry, one scope and one user, and is never used for another. Concurrent requests with an
    expired token cause one renewal; its failure applies to all of them.

    Args:
        transport: the connections to the token server.
        registry: the registry's name in references.
        host: the registry's host, whose address limits the addresses of token servers.
        keyring: the credentials; None for an anonymous client.
        on_warning: called when credentials are refused and the client continues anonymously.
    """

    def __init__(
        self,
        transport: Transport,
        registry: str,
        host: str,
        keyring: Keyring | None = None,
        on_warning: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._transport = transport
        self._registry = registry
        self._host = host
        self._keyring = keyring
        self._on_warning = on_warning
        self._scopes: dict[str, _ScopeState] = {}
        self._warned: set[str] = set()

    def identity(self, scope: str) -> str:
        """Return the credentials in use for a scope, for messages."""
        return self._state(scope).identity

    async def header(self, scope: str, registry_url: URL) -> str | None:
        """Return the ``Authorization`` header for a request of this scope; None before the first challenge.

        A token that is about to expire is renewed first. Raises the errors of `handle_challenges`.
        """
        state = self._state(scope)
        token = state.valid_token()
        if token is None and state.token is not None:
            await self.handle_challenges(state.challenges, scope, None, registry_url)
            token = state.valid_token()
        return token.header.reveal() if token else None

    async def handle_challenges(
        self, challenges: list[Challenge], scope: str, refused: str | None, registry_url: URL
    ) -> None:
        """Obtain a better ``Authorization`` after a 401.

        Args:
            challenges: the challenges of the response.
            scope: the scope of the request: ``repository:NAME:pull``.
            refused: the ``Authorization`` of the request, or None.
            registry_url: the registry's URL; the token server must be as secure.

        Raises:
            AccessDenied: there are no better credentials.
            InvalidSetting: the credentials cannot be read.
            UnexpectedAnswer, MalformedDocument, TransportError: the token server failed.
        """
        state, requested = self._state(scope), time.monotonic()
        async with state.lock:
            known = state.valid_token()
            if known is not None and known.header.reveal() != refused:
                return  # a concurrent request has renewed it
            if state.failure is not None and state.failure[0] >= requested:
                raise copy.copy(state.failure[1])
            state.challenges = challenges
            try:
                state.token = await self._obtain(state, scope, refused, registry_url)
            except FastpullError as error:
                state.token = None
                state.failure = (time.monotonic(), error)
                raise

    async def _obtain(self, state: _ScopeState, scope: str, refused: str | None, registry_url: URL) -> Token:
        by_scheme = {challenge.scheme: challenge for challenge in reversed(state.challenges)}
        bearer, basic = by_scheme.get("bearer"), by_scheme.get("basic")
        realm = realm_of(bearer, registry_url) if bearer else None
        credentials = await self._credentials(scope, realm)
        state.identity = f"as {credentials}" if credentials else "without credentials"
        if bearer is not None and realm is not None:
            found = await self._bearer(state, bearer, realm, scope, credentials)
        elif basic is not None and credentials is not None:
            found = await self._basic(scope, credentials, refused)
        else:
            found = None
        if found is None or found.header.reveal() == refused:
            raise self._denied(scope)
        return found

    async def _bearer(
        self, state: _ScopeState, bearer: Challenge, realm: URL, scope: str, credentials: Credentials | None
    ) -> Token | None:
        if credentials is not None and credentials.registry_token:
            return Token(Secret(f"Bearer {credentials.registry_token.reveal()}"), _FOREVER)
        server = TokenServer(self._transport, realm, bearer.parameters.get("service", ""), self._host)
        scopes = scopes_of(scope, bearer)
        token = await server.fetch(scopes, credentials)
        if token is None and (fresh := await self._renewed(scope, credentials)):
            token = await server.fetch(scopes, fresh)
        if token is not None or credentials is None:
            return token
        token = await server.fetch(scopes, None)
        if token is None:
            return None
        state.identity = f"without credentials, after those {state.identity} were refused"
        if credentials.origin not in self._warned:
            self._warned.add(credentials.origin)
            self._on_warning(
                f"{host_of(realm)} refused the credentials of {credentials} for {self._registry}; continuing without. "
                f"Log in again, or remove them"
            )
        return token

    async def _basic(self, scope: str, credentials: Credentials, refused: str | None) -> Token | None:
        if credentials.basic != refused:
            return Token(Secret(credentials.basic), _FOREVER)
        fresh = await self._renewed(scope, credentials)
        return Token(Secret(fresh.basic), _FOREVER) if fresh else None

    async def _credentials(self, scope: str, realm: URL | None) -> Credentials | None:
        if self._keyring is None:
            return None
        found = await self._keyring.find(self._registry, _repository(scope))
        if found is None and realm is not None and realm.host:
            found = await self._keyring.find_machine(realm.host)
        return found

    async def _renewed(self, scope: str, stale: Credentials | None) -> Credentials | None:
        """Return fresh credentials from the program that issued the stale ones; None if there are none."""
        if self._keyring is None or stale is None or not stale.is_renewable:
            return None
        fresh = await self._keyring.find(self._registry, _repository(scope), renew=True)
        return fresh if fresh != stale else None

    def _state(self, scope: str) -> _ScopeState:
        return self._scopes.setdefault(scope, _ScopeState())

    def _denied(self, scope: str) -> AccessDenied:
        return AccessDenied(_repository(scope), self._registry, self.identity(scope))


def _repository(scope: str) -> str:
    return scope.removeprefix("repository:").removesuffix(":pull")
