"""A token server, and a registry that accepts its tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from aiohttp import BasicAuth, web

from tests.support.registry import FaultyRegistry


@dataclass
class TokenRequest:
    method: str
    authorization: str
    query: list[tuple[str, str]]
    form: dict[str, str]


@dataclass
class FakeTokenServer:
    """Issues tokens for scopes to its users, and records the requests.

    Attributes:
        users: the passwords by user name.
        refresh: the valid OAuth2 refresh tokens.
        is_open: whether anonymous clients get tokens.
        methods: the supported methods; others get 404.
        body_of: makes the response body from a token.
        requests: all requests, in order.
        tokens: user and scopes of each issued token.
        pauses: the ``Retry-After`` values of the next responses, which are 429.
        times: the times of the requests.
    """

    users: dict[str, str] = field(default_factory=dict)
    refresh: set[str] = field(default_factory=set)
    is_open: bool = True
    methods: tuple[str, ...] = ("GET", "POST")
    body_of: Callable[[str], dict[str, object]] = lambda token: {"token": token, "expires_in": 300}
    requests: list[TokenRequest] = field(default_factory=list)
    tokens: dict[str, tuple[str, set[str]]] = field(default_factory=dict)
    status: int = 200
    delay_seconds: float = 0.0
    host: str = "127.0.0.1"
    pauses: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_route("*", "/token", self._handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, 0).start()
        self.realm = f"http://{self.host}:{self._runner.addresses[0][1]}/token"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        form = {name: str(value) for name, value in (await request.post()).items()}
        authorization = request.headers.get("Authorization", "")
        self.requests.append(TokenRequest(request.method, authorization, list(request.query.items()), form))
        self.times.append(time.monotonic())
        await asyncio.sleep(self.delay_seconds)
        if self.pauses:
            return web.Response(status=429, headers={"Retry-After": str(self.pauses.pop(0))})
        if self.status != 200:
            return web.Response(status=self.status)
        if request.method not in self.methods:
            return web.Response(status=404)
        user = self._user(authorization, form)
        if user is None or (not user and not self.is_open):
            return web.json_response({"details": f"unknown user: {authorization} {form}"}, status=401)
        scopes = set(request.query.getall("scope", [])) | set(form.get("scope", "").split())
        token = f"token-{len(self.tokens) + 1}"
        self.tokens[token] = (user, scopes)
        return web.json_response(self.body_of(token))

    def _user(self, authorization: str, form: dict[str, str]) -> str | None:
        if form.get("grant_type") == "refresh_token":
            return "refreshed" if form["refresh_token"] in self.refresh else None
        if form.get("grant_type") == "password":
            return form["username"] if self.users.get(form["username"]) == form["password"] else None
        if not authorization:
            return ""
        given = BasicAuth.decode(authorization)
        return given.login if self.users.get(given.login) == given.password else None


class GuardedRegistry(FaultyRegistry):
    """A registry that accepts the tokens of a `FakeTokenServer` for their scopes.

    Attributes:
        server: the token server.
        challenge: the ``WWW-Authenticate`` headers; ``{realm}`` and ``{scope}`` are filled in.
        allowed: the users that may pull; None for everyone with a token.
        revoked: the revoked tokens.
    """

    def __init__(self, server: FakeTokenServer) -> None:
        super().__init__()
        self.server = server
        self.challenge = ['Bearer realm="{realm}",service="test",scope="{scope}"']
        self.allowed: set[str] | None = None
        self.revoked: set[str] = set()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.split("/")
        scope = f"repository:{'/'.join(parts[2:-2])}:pull"
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        user, scopes = self.server.tokens.get(token, ("", set()))
        good = kind == "Bearer" and token in self.server.tokens and token not in self.revoked
        if good and scope in scopes and (self.allowed is None or user in self.allowed):
            return await super()._handle(request)
        answer = self.refusal(401, "UNAUTHORIZED")
        for text in self.challenge:
            answer.headers.add("WWW-Authenticate", text.format(realm=self.server.realm, scope=scope))
        return answer
