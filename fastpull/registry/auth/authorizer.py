"""Authorization: which header goes with which request, and how it is come by.

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


class _Account:
    """What is known of one scope: who asks, what was granted, and how it was asked for."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.grant: Token | None = None
        self.challenges: list[Challenge] = []
        self.identity = "asked without credentials"
        self.failure: tuple[float, FastpullError] | None = None

    def valid(self) -> Token | None:
        return self.grant if self.grant and time.monotonic() < self.grant.expires else None


class Authorizer:
    """The authorization of one client to one registry.

    A token is for one registry, one scope and one user, and never used for another. However many requests find their
    token expired at once, one is fetched; if that fails, it fails for all of them.

    Args:
        transport: to reach the token server with.
        registry: as in references.
        host: that it is reached at; what it sends this client to is judged by it.
        keyring: None for an anonymous client.
        on_warning: told when credentials are refused, and the client goes on without.
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
        self._accounts: dict[str, _Account] = {}
        self._warned: set[str] = set()

    def identity(self, scope: str) -> str:
        """Who is asking for a scope, for messages."""
        return self._account(scope).identity

    async def header(self, scope: str, registry_url: URL) -> str | None:
        """The ``Authorization`` that a request of this scope needs, as far as is known; None before a challenge.

        A token that is about to expire is renewed first. Raises what `handle_challenges` raises.
        """
        account = self._account(scope)
        grant = account.valid()
        if grant is None and account.grant is not None:
            await self.handle_challenges(account.challenges, scope, None, registry_url)  # nobody has refused it yet
            grant = account.valid()
        return grant.header.reveal() if grant else None

    async def handle_challenges(
        self, challenges: list[Challenge], scope: str, refused: str | None, registry_url: URL
    ) -> None:
        """Answers a 401, so that `header` has something better than what was refused.

        Args:
            challenges: of the answer.
            scope: of the request: ``repository:NAME:pull``.
            refused: the ``Authorization`` that was sent, or None.
            registry_url: that answered; a token server has to be as secure as it is.

        Raises:
            AccessDenied: there is nothing better.
            InvalidSetting: the credentials cannot be read.
            UnexpectedAnswer, MalformedDocument, TransportError: the token server does not do its part.
        """
        account, asked = self._account(scope), time.monotonic()
        async with account.lock:
            known = account.valid()
            if known is not None and known.header.reveal() != refused:
                return  # somebody else has just fetched it
            if account.failure is not None and account.failure[0] >= asked:
                raise copy.copy(account.failure[1])
            account.challenges = challenges
            try:
                account.grant = await self._grant(account, scope, refused, registry_url)
            except FastpullError as error:
                account.grant = None
                account.failure = (time.monotonic(), error)
                raise

    async def _grant(self, account: _Account, scope: str, refused: str | None, registry_url: URL) -> Token:
        by_scheme = {challenge.scheme: challenge for challenge in reversed(account.challenges)}
        bearer, basic = by_scheme.get("bearer"), by_scheme.get("basic")
        realm = realm_of(bearer, registry_url) if bearer else None
        credentials = await self._credentials(scope, realm)
        account.identity = f"as {credentials}" if credentials else "asked without credentials"
        if bearer is not None and realm is not None:
            found = await self._bearer(account, bearer, realm, scope, credentials)
        elif basic is not None and credentials is not None:
            found = await self._basic(scope, credentials, refused)
        else:
            found = None
        if found is None or found.header.reveal() == refused:
            raise self._denied(scope)
        return found

    async def _bearer(
        self, account: _Account, bearer: Challenge, realm: URL, scope: str, credentials: Credentials | None
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
        account.identity = f"asked without credentials, after it refused those {account.identity}"
        if credentials.origin not in self._warned:
            self._warned.add(credentials.origin)
            self._on_warning(
                f"{host_of(realm)} refused the credentials of {credentials} for {self._registry}; going on without. "
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
        """Fresh credentials of a program that made the stale ones; None if there are no others."""
        if self._keyring is None or stale is None or not stale.is_renewable:
            return None
        fresh = await self._keyring.find(self._registry, _repository(scope), renew=True)
        return fresh if fresh != stale else None

    def _account(self, scope: str) -> _Account:
        return self._accounts.setdefault(scope, _Account())

    def _denied(self, scope: str) -> AccessDenied:
        return AccessDenied(_repository(scope), self._registry, self.identity(scope))


def _repository(scope: str) -> str:
    return scope.removeprefix("repository:").removesuffix(":pull")
