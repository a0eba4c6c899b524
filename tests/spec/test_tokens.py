"""Token servers of every kind, and a registry that requires their tokens."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

import fastpull
from fastpull.config.access import Access
from fastpull.config.secret import Secret
from fastpull.config.settings import Settings
from fastpull.errors import AccessDenied, FastpullError, RateLimited, UnexpectedAnswer
from fastpull.oci.descriptor import Descriptor
from fastpull.oci.digest import Digest
from fastpull.registry import client as client_module
from fastpull.registry.auth.keyring import Keyring
from fastpull.registry.client import RegistryClient
from fastpull.registry.http.retry import Backoff
from fastpull.registry.http.transport import Transport
from fastpull.telemetry.events import Event, Warned
from tests.support.layers import file, publish
from tests.support.logins import answering, encoded, helper, login, write
from tests.support.registry import FaultyRegistry
from tests.support.tokens import FakeTokenServer, GuardedRegistry

SCOPE = "repository:test/image:pull"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module.RegistryClient, "backoff", Backoff(3, 0.01, 0.05))


def as_user(settings: Settings, name: str, password: str) -> Settings:
    return replace(settings, access=Access(username=name, password=Secret(password)))


async def resolve(
    registry: FaultyRegistry, settings: Settings, events: list[Event] | None = None, name: str = "test/image"
) -> None:
    async with fastpull.Client(settings, on_event=(events if events is not None else []).append) as client:
        await client.resolve(f"{registry.address}/{name}:v1")


async def denied(registry: FaultyRegistry, settings: Settings) -> str:
    with pytest.raises(AccessDenied) as caught:
        await resolve(registry, settings)
    assert caught.value.exit_code == 12
    assert registry.address in str(caught.value)
    assert "test/image" in str(caught.value)
    return str(caught.value)


# --- token requests


@pytest.mark.case("auth", "GET with service and scope")
async def test_token_request_has_service_scope_and_user(
    tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings
) -> None:
    tokens.users, tokens.is_open = {"user": "hunter2"}, False
    await resolve(guarded, as_user(settings, "user", "hunter2"))
    (asked,) = tokens.requests
    assert asked.method == "GET"
    assert asked.authorization == "Basic " + encoded("user", "hunter2")
    assert asked.query == [("service", "test"), ("scope", SCOPE)]


@pytest.mark.case("auth", "404 for GET: POST with grant_type password")
async def test_token_server_without_get_gets_post(
    tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings
) -> None:
    tokens.users, tokens.is_open, tokens.methods = {"user": "hunter2"}, False, ("POST",)
    await resolve(guarded, as_user(settings, "user", "hunter2"))
    assert [one.method for one in tokens.requests] == ["GET", "POST"]
    assert tokens.requests[1].form == {
        "grant_type": "password",
        "username": "user",
        "password": "hunter2",
        "client_id": "fastpull",
        "service": "test",
        "scope": SCOPE,
    }
    assert tokens.requests[1].authorization == ""


@pytest.mark.case("auth", "POST, grant_type refresh_token")
async def test_identity_token_is_sent_by_post(
    tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings, tmp_path: Path
) -> None:
    tokens.refresh, tokens.is_open = {"refresh-me"}, False
    entry = {"auth": encoded("00000000-0000-0000-0000-000000000000", ""), "identitytoken": "refresh-me"}
    path = write(tmp_path / "auth.json", {"auths": {guarded.address: entry}})
    await resolve(guarded, replace(settings, access=Access(authfile=str(path))))
    (asked,) = tokens.requests
    assert (asked.method, asked.form["grant_type"], asked.form["refresh_token"]) == (
        "POST",
        "refresh_token",
        "refresh-me",
    )
    assert asked.query == []


@pytest.mark.case("auth", "a registry token")
async def test_registry_token_is_sent_unchanged(
    tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings, tmp_path: Path
) -> None:
    tokens.tokens["mine"] = ("user", {SCOPE})
    path = write(tmp_path / "auth.json", {"auths": {guarded.address: {"registrytoken": "mine"}}})
    await resolve(guarded, replace(settings, access=Access(authfile=str(path))))
    assert tokens.requests == []


@pytest.mark.case("auth", "token, access_token, no or odd expires_in and issued_at")
@pytest.mark.parametrize(
    "answer",
    [
        lambda token: {"token": token},
        lambda token: {"access_token": token},
        lambda token: {"token": token, "access_token": "other", "expires_in": 0},
        lambda token: {"token": "", "access_token": token, "issued_at": "0001-01-01T00:00:00Z"},
        lambda token: {"token": token, "expires_in": -5, "issued_at": "nonsense", "refresh_token": "x"},
    ],
    ids=["token", "access_token", "both", "issued at zero", "expired long ago"],
)
async def test_token_response_may_take_several_forms(
    tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings, answer: Callable[[str], dict[str, object]]
) -> None:
    tokens.body_of = answer
    await resolve(guarded, settings)
    assert len(tokens.requests) == 1, "a token was renewed within its first minute"


@pytest.mark.case("auth", "several challenges in one or more headers, quoted commas")
@pytest.mark.parametrize(
    "challenge",
    [
        ['Basic realm="x", Bearer realm="{realm}",service="test",scope="{scope}"'],
        ['Bearer realm="{realm}",service="test",scope="{scope}", Basic realm="x"'],
        ['Basic realm="a, b"', 'Bearer realm="{realm}",scope="{scope}"'],
        ["Negotiate", 'Bearer realm="{realm}"'],
        ['BEARER Realm="{realm}" , scope="{scope}"'],
        ['Bearer realm="{realm}",scope="repository:other/image:pull,push {scope}"'],
        ['Bearer realm="{realm}",scope=""'],
    ],
)
async def test_bearer_is_preferred_among_several_challenges(
    tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings, challenge: list[str]
) -> None:
    guarded.challenge = challenge
    await resolve(guarded, settings)
    assert ("scope", SCOPE) in tokens.requests[0].query


# --- one token for each registry, scope and user


@pytest.mark.case("auth", "a token for each repository and user")
async def test_each_repository_has_its_own_token_and_user(
    tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings, tmp_path: Path
) -> None:
    tokens.users = {"one": "1", "two": "2"}
    for name in ("team/one", "team/two", "open"):
        guarded.manifests[name, "v1"] = guarded.manifests["test/image", "v1"]
    entries = {f"{guarded.address}/team/one": login("one", "1"), f"{guarded.address}/team/two": login("two", "2")}
    path = write(tmp_path / "auth.json", {"auths": entries})
    async with fastpull.Client(replace(settings, access=Access(authfile=str(path)))) as client:
        for name in ("team/one", "team/two", "open", "team/one"):
            await client.resolve(f"{guarded.address}/{name}:v1")
    assert dict(tokens.tokens.values()) == {
        "one": {"repository:team/one:pull"},
        "two": {"repository:team/two:pull"},
        "": {"repository:open:pull"},
    }


@pytest.mark.case("auth", "100 ranges with an expired token: one token request")
async def test_hundred_ranges_with_expired_token_cause_one_token_request(
    tokens: FakeTokenServer, guarded: GuardedRegistry
) -> None:
    content = os.urandom(100 * 1000)
    guarded.blobs[str(Digest.of(content))] = content
    descriptor = Descriptor("application/octet-stream", Digest.of(content), len(content))
    tokens.delay_seconds = 0.05

    async def fetch(client: RegistryClient, number: int) -> bytes:
        found = b""
        async with client.open_range("test/image", descriptor, number * 1000, number * 1000 + 1000) as body:
            while pieces := await body.pieces():
                found += b"".join(pieces)
        return found

    async with Transport() as transport:
        client = RegistryClient(transport, guarded.address, guarded.address, schemes=("http",))
        await fetch(client, 0)
        guarded.revoked = set(tokens.tokens)
        tokens.requests.clear()
        pieces = await asyncio.gather(*(fetch(client, number) for number in range(100)))
    assert b"".join(pieces) == content
    assert len(tokens.requests) == 1


@pytest.mark.case("auth", "a failing token server gets one request for all waiting requests")
async def test_token_server_failure_applies_to_all_waiting_requests(
    tokens: FakeTokenServer, guarded: GuardedRegistry
) -> None:
    tokens.status, tokens.delay_seconds = 418, 0.1
    async with Transport() as transport:
        client = RegistryClient(transport, guarded.address, guarded.address, schemes=("http",))
        results = await asyncio.gather(
            *(client.manifest("test/image", "v1") for _ in range(50)), return_exceptions=True
        )
    assert {type(result) for result in results} == {UnexpectedAnswer}
    assert len(tokens.requests) == 1


@pytest.mark.case("auth", "a token about to expire")
async def test_token_is_renewed_before_expiry_without_refused_request(
    tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens.body_of = lambda token: {"token": token, "expires_in": 100}
    async with fastpull.Client(settings) as client:
        await client.resolve(f"{guarded.address}/test/image:v1")
        refused = []
        handle = guarded._handle

        async def watch(request: web.Request) -> web.StreamResponse:
            answer = await handle(request)
            refused.append(answer.status == 401)
            return answer

        monkeypatch.setattr(guarded, "_handle", watch)
        clock = time.monotonic
        monkeypatch.setattr("fastpull.registry.auth.authorizer.time.monotonic", lambda: clock() + 95)
        await client.resolve(f"{guarded.address}/test/image:v1")
    assert len(tokens.requests) == 2
    assert refused
    assert not any(refused)


@pytest.mark.case("auth", "the same token is returned again")
async def test_token_server_may_return_the_same_token(
    tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is still valid: it is renewed before its expiry."""
    tokens.body_of = lambda _: {"token": "token-1", "expires_in": 100}
    async with fastpull.Client(settings) as client:
        await client.resolve(f"{guarded.address}/test/image:v1")
        clock = time.monotonic
        monkeypatch.setattr("fastpull.registry.auth.authorizer.time.monotonic", lambda: clock() + 95)
        await client.resolve(f"{guarded.address}/test/image:v1")
    assert len(tokens.requests) == 2


@pytest.mark.case("auth", "429 from a token server")
@pytest.mark.parametrize(("seconds", "raised"), [(1, None), (3600, RateLimited)])
async def test_retry_after_of_token_server_is_honored(
    tokens: FakeTokenServer,
    guarded: GuardedRegistry,
    settings: Settings,
    seconds: int,
    raised: type[FastpullError] | None,
) -> None:
    tokens.pauses = [seconds]
    if raised is None:
        await resolve(guarded, settings)
        first, second = tokens.times
        assert second - first >= 0.95
    else:
        with pytest.raises(raised, match="Try again in 3600 s"):
            await resolve(guarded, settings)
        assert len(tokens.requests) == 1


@pytest.mark.case("auth", "insufficient_scope, another repository's scope")
async def test_insufficient_scope_causes_new_token(
    tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings
) -> None:
    """The registry requires a larger scope later, by 403 and insufficient_scope."""
    more = "repository:base/image:pull"
    handle = guarded._handle

    async def picky(request: web.Request) -> web.StreamResponse:
        answer = await handle(request)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if answer.status == 401 or more in tokens.tokens[token][1]:
            return answer
        challenge = f'Bearer realm="{tokens.realm}",error="insufficient_scope",scope="{SCOPE} {more}"'
        return guarded.refusal(403, "DENIED", {"WWW-Authenticate": challenge})

    guarded._handle = picky  # type: ignore[method-assign]
    await resolve(guarded, settings)
    assert [one.query.count(("scope", more)) for one in tokens.requests] == [0, 1]


# --- refused credentials


@pytest.mark.case("auth", "wrong credentials: no loop")
async def test_wrong_credentials_are_sent_once_and_error_names_origin(
    tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings, tmp_path: Path
) -> None:
    tokens.users, tokens.is_open = {"user": "right"}, False
    path = write(tmp_path / "auth.json", {"auths": {guarded.address: login("user", "hunter2")}})
    said = await denied(guarded, replace(settings, access=Access(authfile=str(path))))
    assert [one.authorization != "" for one in tokens.requests] == [True, False], (
        "not one request with and one without credentials"
    )
    assert all(word in said for word in ("'user'", "auth.json, line 3", "docker login", "inspect --auth"))
    assert "hunter2" not in said
    assert encoded("user", "hunter2") not in said


@pytest.mark.case("auth", "the registry refuses a token: no loop")
async def test_refused_token_fails_the_pull(
    tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings
) -> None:
    guarded.allowed = {"somebody else"}
    await denied(guarded, settings)
    assert len(tokens.requests) == 2, "no loop"


@pytest.mark.case("auth", "wrong credentials for a public image")
async def test_public_image_is_pulled_despite_refused_credentials(
    tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings
) -> None:
    tokens.users = {"user": "right"}
    events: list[Event] = []
    await resolve(guarded, as_user(settings, "user", "hunter2"), events)
    (warning,) = [event for event in events if isinstance(event, Warned)]
    assert warning.source == guarded.address
    assert "refused the credentials of 'user'" in warning.message
    assert "hunter2" not in warning.message


@pytest.mark.case("auth", "a helper's password expires")
async def test_helper_runs_again_after_its_password_expired(
    tokens: FakeTokenServer,
    guarded: GuardedRegistry,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cloud passwords expire after an hour, and a pull may take longer."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    path = write(tmp_path / "config.json", {"credHelpers": {guarded.address: "cloud"}})
    tokens.users, tokens.is_open = {"user": "first"}, False
    port = guarded.address.rpartition(":")[2]
    helper(tmp_path / "bin", "cloud", answering(**{port: ("user", "first")}))
    async with fastpull.Client(replace(settings, access=Access(authfile=str(path)))) as client:
        await client.resolve(f"{guarded.address}/test/image:v1")
        helper(tmp_path / "bin", "cloud", answering(**{port: ("user", "second")}))
        tokens.users = {"user": "second"}
        guarded.revoked = set(tokens.tokens)
        await client.resolve(f"{guarded.address}/test/image:v1")
    assert (tmp_path / "bin/docker-credential-cloud.calls").read_text() == "get\n" * 2


@pytest.mark.case("credentials", "enroot's entry for the host of the token server")
async def test_enroot_entry_of_token_server_is_used(
    tokens: FakeTokenServer,
    guarded: GuardedRegistry,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ENROOT_CONFIG_PATH", str(tmp_path))
    write(tmp_path / ".credentials", "machine auth.test login user password hunter2")
    tokens.users, tokens.is_open = {"user": "hunter2"}, False
    keyring = Keyring()
    found = await keyring.find_machine("AUTH.test")
    assert found is not None
    assert await keyring.find_machine("evil.auth.test") is None
    write(tmp_path / ".credentials", "machine 127.0.0.1 login user password hunter2")
    await resolve(guarded, settings)


@pytest.mark.case("auth", "a token server refuses, redirects or fails")
@pytest.mark.parametrize(("status", "exit_code"), [(500, 11), (302, 11), (204, 11), (403, 12), (401, 12), (400, 12)])
async def test_token_server_without_token_is_an_error(
    tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings, status: int, exit_code: int
) -> None:
    tokens.status = status
    with pytest.raises(FastpullError) as caught:
        await resolve(guarded, settings)
    assert caught.value.exit_code == exit_code
    if exit_code == 11:
        assert tokens.realm in str(caught.value)


@pytest.mark.case("auth", "continually revoked tokens")
async def test_ranges_survive_revoked_tokens(
    tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings, tmp_path: Path
) -> None:
    """The token of every second request is revoked."""
    content = os.urandom(30 << 20)
    reference = publish(guarded, [file("f", content)])
    seen = 0

    async def revoke(_: FaultyRegistry, __: web.Request, ___: str) -> None:
        nonlocal seen
        seen += 1
        if seen % 2:
            guarded.revoked |= set(tokens.tokens)

    guarded.faults.append(revoke)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(fastpull.Client(settings))
        await client.pull(reference, tmp_path / "out")
    assert (tmp_path / "out/f").read_bytes() == content
    assert sum(guarded.sent.values()) <= 1.05 * len(content) + (1 << 20)
