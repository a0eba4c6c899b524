"""Credentials are sent only to their origin, and appear in no output, file, log or argument."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import pytest
from aiohttp import web
from yarl import URL

import fastpull
from fastpull.config.access import Access
from fastpull.config.settings import Settings
from fastpull.demo.registry import LoopbackRegistry
from fastpull.errors import FastpullError, UnexpectedAnswer
from fastpull.registry import client as client_module
from fastpull.registry.download import download as download_module
from fastpull.registry.http import transport as transport_module
from fastpull.registry.http.addresses import AddressScope, address_scope
from fastpull.registry.http.retry import Backoff
from fastpull.registry.http.transport import Transport
from tests.support.layers import file, publish
from tests.support.logins import encoded, files_below, login, write
from tests.support.registry import FaultyRegistry
from tests.support.tokens import FakeTokenServer, GuardedRegistry

PASSWORD = "hunter2-password"
IDENTITY = "hunter2-identity"
SECRETS = [
    text.encode()
    for text in (PASSWORD, IDENTITY, encoded("user", PASSWORD), encoded("", PASSWORD), "token-1", "token-2", "hunter2")
]


def leaks(content: bytes) -> list[bytes]:
    return [secret for secret in SECRETS if secret in content]


@dataclass
class Recorder:
    """Another origin, which serves the content of a registry and records every received byte."""

    host: str = "127.0.0.2"
    registry: FaultyRegistry | None = None
    seen: list[bytes] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, 0).start()
        self.address = f"{self.host}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def port(self) -> str:
        return self.address.rpartition(":")[2]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        headers = b"\n".join(name + b": " + value for name, value in request.raw_headers)
        self.seen.append(f"{request.method} {request.raw_path}\n".encode() + headers + b"\n" + await request.read())
        path = request.match_info["path"].removeprefix("again/")
        if path != request.match_info["path"]:
            return web.Response(status=307, headers={"Location": f"http://{self.address}/{path}?sig=x"})
        assert self.registry is not None
        kind, _, rest = path.rpartition("/")
        if kind.endswith("manifests"):
            return await self.registry.serve_manifest(request, "test/image", rest)
        return await LoopbackRegistry.serve_blob(self.registry, request, "test/image", rest)


@pytest.fixture
async def recorder(guarded: GuardedRegistry) -> AsyncIterator[Recorder]:
    async with Recorder(registry=guarded) as running:
        yield running


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module.RegistryClient, "backoff", Backoff(2, 0.01, 0.05))
    monkeypatch.setattr(download_module.Download, "backoff", Backoff(2, 0.01, 0.05))


# --- other origins

ENTRIES: dict[str, dict[str, str]] = {
    "basic": login("user", PASSWORD),
    "token": login("user", PASSWORD),
    "identity token": {"auth": encoded("user", ""), "identitytoken": IDENTITY},
    "registry token": {"registrytoken": "token-1"},
}
SHAPES: dict[str, Callable[[Recorder, str], str]] = {
    "another host": lambda other, path: f"http://{other.address}/{path}",
    "a signed URL": lambda other, path: f"http://{other.address}/{path}?X-Amz-Signature=abc&Expires=1",
    "without a scheme": lambda other, path: f"//{other.address}/{path}",
    "another redirect": lambda other, path: f"http://{other.address}/again/{path}",
    "a user in the URL": lambda other, path: f"http://somebody:something@{other.address}/{path}",
    "an empty user": lambda other, path: f"http://@{other.address}/{path}",
    "a fragment": lambda other, path: f"http://{other.address}/{path}#fragment",
    "another port of the host": lambda other, path: f"http://127.0.0.1:{other.port}/{path}",
}
STAGES = ("manifests", "config", "blobs")


class Redirecting(GuardedRegistry):
    """Redirects authorized requests."""

    def __init__(self, server: FakeTokenServer, stage: str, status: int, location: Callable[[str], str]) -> None:
        super().__init__(server)
        self._stage, self._status, self._location = stage, status, location
        self.is_basic = False

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.is_basic and request.headers.get("Authorization") != f"Basic {encoded('user', PASSWORD)}":
            return self.refusal(401, "UNAUTHORIZED", {"WWW-Authenticate": 'Basic realm="x"'})
        answer = await (FaultyRegistry._handle(self, request) if self.is_basic else super()._handle(request))
        kind = "manifests" if "/manifests/" in request.path else "blobs" if "Range" in request.headers else "config"
        if answer.status in (200, 206) and kind == self._stage:
            return web.Response(status=self._status, headers={"Location": self._location(request.path[1:])})
        return answer


@pytest.mark.case("auth", "redirects of manifests, configs and blobs, in all forms: no credentials")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("entry", ENTRIES)
async def test_no_redirect_carries_credentials(
    tokens: FakeTokenServer, settings: Settings, tmp_path: Path, entry: str, shape: str, stage: str
) -> None:
    tokens.users, tokens.refresh, tokens.is_open = {"user": PASSWORD}, {IDENTITY}, False
    host = "127.0.0.1" if "port" in shape else "127.0.0.2"
    status = (301, 302, 303, 307, 308)[(len(shape) + len(stage)) % 5]
    async with Recorder(host) as other:
        registry = Redirecting(tokens, stage, status, lambda path: SHAPES[shape](other, path))
        registry.is_basic = entry == "basic"
        other.registry = registry
        async with registry:
            reference = publish(registry, [file("a")])
            if entry == "registry token":
                tokens.tokens["token-1"] = ("user", {"repository:test/image:pull"})
            path = write(tmp_path / "auth.json", {"auths": {registry.address: ENTRIES[entry]}})
            async with fastpull.Client(replace(settings, access=Access(authfile=str(path)))) as client:
                await client.pull(reference, tmp_path / "out")
            assert any(one.authorization for one in registry.requests) or registry.is_basic
    assert other.seen
    assert [leaks(content) for content in other.seen] == [[]] * len(other.seen)
    assert not any(b"authorization" in content.lower() for content in other.seen)


@pytest.mark.case("auth", "a realm redirects")
async def test_redirect_of_token_server_is_not_followed(
    tokens: FakeTokenServer, guarded: GuardedRegistry, recorder: Recorder, settings: Settings
) -> None:
    for status in (301, 302, 303, 307, 308):

        async def elsewhere(_: web.Request, status: int = status) -> web.Response:
            return web.Response(status=status, headers={"Location": f"http://{recorder.address}/token"})

        async with GuardedRegistry(tokens) as registry:
            publish(registry, [file("a")])
            realm = FaultyRegistry()
            realm.handle = elsewhere  # type: ignore[method-assign,assignment]
            async with realm:
                registry.challenge = [f'Bearer realm="http://{realm.address}/token",scope="{{scope}}"']
                access = Access(username="user", password=fastpull.config.Secret(PASSWORD))
                with pytest.raises(UnexpectedAnswer):
                    async with fastpull.Client(replace(settings, access=access)) as client:
                        await client.resolve(f"{registry.address}/test/image:v1")
    assert recorder.seen == []


@pytest.mark.case("auth", "a realm on another host")
async def test_token_server_gets_login_and_never_registry_token(
    guarded: GuardedRegistry, settings: Settings, tmp_path: Path
) -> None:
    """The registry in turn gets the token, and never the login."""
    async with FakeTokenServer(users={"user": PASSWORD}, is_open=False, host="127.0.0.2") as server:
        guarded.server = server
        path = write(tmp_path / "auth.json", {"auths": {guarded.address: login("user", PASSWORD)}})
        async with fastpull.Client(replace(settings, access=Access(authfile=str(path)))) as client:
            await client.pull(f"{guarded.address}/test/image:v1", tmp_path / "out")
        assert {one.authorization for one in server.requests} == {f"Basic {encoded('user', PASSWORD)}"}
    assert {one.authorization.split()[0] for one in guarded.requests} == {"Bearer"}


@pytest.mark.case("auth", "two registries in one client")
async def test_registries_never_get_each_others_logins(
    tokens: FakeTokenServer, guarded: GuardedRegistry, recorder: Recorder, settings: Settings, tmp_path: Path
) -> None:
    tokens.users = {"user": PASSWORD}
    recorder.registry = FaultyRegistry()
    publish(recorder.registry, [file("b")])
    path = write(tmp_path / "auth.json", {"auths": {guarded.address: login("user", PASSWORD)}})
    async with fastpull.Client(replace(settings, access=Access(authfile=str(path)))) as client:
        await client.pull(f"{guarded.address}/test/image:v1", tmp_path / "one")
        await client.pull(f"{recorder.address}/test/image:v1", tmp_path / "two")
    assert recorder.seen
    assert not any(leaks(content) for content in recorder.seen)


@pytest.mark.case("auth", "foreign URLs in a descriptor")
async def test_urls_of_descriptor_are_never_requested(
    tokens: FakeTokenServer, guarded: GuardedRegistry, recorder: Recorder, settings: Settings, tmp_path: Path
) -> None:
    """The author of an image chooses the hosts in the ``urls`` of foreign layers."""
    _, body = guarded.manifests["test/image", "v1"]
    manifest: dict[str, Any] = json.loads(body)
    for layer in manifest["layers"]:
        layer["urls"] = [f"http://{recorder.address}/v2/test/image/blobs/{layer['digest']}"]
        layer["mediaType"] = "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
    guarded.add_manifest("test/image", "foreign", manifest)
    async with fastpull.Client(as_user(settings)) as client:
        try:
            await client.pull(f"{guarded.address}/test/image:foreign", tmp_path / "out")
        except FastpullError as error:
            assert error.exit_code == 21
    assert recorder.seen == []


def as_user(settings: Settings, **more: Any) -> Settings:
    return replace(settings, access=Access(username="user", password=fastpull.config.Secret(PASSWORD), **more))


# --- private networks

NAMES = {
    "registry.test": ["127.0.0.1"],
    "storage.test": ["127.0.0.2"],
    "both.test": ["127.0.0.1", "127.0.0.2"],
    "meta.test": ["127.0.0.3"],
}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """127.0.0.1 counts as a public address, 127.0.0.2 as one of a private network, 127.0.0.3 as link-local."""
    known = {"127.0.0.1": AddressScope.PUBLIC, "127.0.0.2": AddressScope.SITE, "127.0.0.3": AddressScope.LINK}
    monkeypatch.setattr(transport_module, "address_scope", lambda text: address_scope_mapped(text, known))
    table, original = {name: list(addresses) for name, addresses in NAMES.items()}, socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *arguments: Any, **more: Any) -> Any:
        if host in table:
            more.pop("flags", None)
            return [one for address in table[host] for one in original(address, port, *arguments[:3], **more)]
        return original(host, port, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return table


def address_scope_mapped(text: str, known: dict[str, AddressScope]) -> AddressScope:
    if text in known:  # PUBLIC is 0
        return known[text]
    mapped = text.removeprefix("::ffff:")
    return known[mapped] if mapped in known else address_scope(text)


def no_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "fastpull.registry.pool.is_loopback", lambda _: True
    )  # allows plain http for the names of the test


FORBIDDEN = {
    "a literal address": "127.0.0.2",
    "a name": "storage.test",
    "a name of two addresses": "both.test",
    "an address in IPv6": "[::ffff:7f00:2]",
    "an address as a number": "2130706434",
    "an address as octal": "0177.0.0.2",
    "a short address": "127.2",
    "link-local": "127.0.0.3",
    "a name of link-local": "meta.test",
    "this machine": "localhost",
}


async def attempt(
    guarded: GuardedRegistry, recorder: Recorder, settings: Settings, tmp_path: Path, how: str, host: str
) -> None:
    """Pull from a registry that refers the client to a host, for a blob or for a token."""
    name = f"registry.test:{guarded.address.rpartition(':')[2]}"
    if how == "realm":
        guarded.challenge = [f'Bearer realm="http://{host}:{recorder.port}/token",scope="{{scope}}"']
    else:

        async def away(_: FaultyRegistry, request: web.Request, digest: str) -> web.Response:
            return web.Response(status=307, headers={"Location": f"http://{host}:{recorder.port}/x/blobs/{digest}"})

        guarded.faults.append(away)
    async with fastpull.Client(settings) as client:
        await client.pull(f"{name}/test/image:v1", tmp_path / "out")


@pytest.mark.case("auth", "realms and redirects to private, local and link-local addresses")
@pytest.mark.parametrize("how", ["realm", "redirect"])
@pytest.mark.parametrize("kind", FORBIDDEN)
async def test_public_registry_cannot_refer_to_private_addresses(
    guarded: GuardedRegistry,
    settings: Settings,
    tmp_path: Path,
    names: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    kind: str,
) -> None:
    no_loopback(monkeypatch)
    names["localhost"] = ["::1"]
    host = FORBIDDEN[kind]
    async with Recorder("127.0.0.3" if "link-local" in kind else "127.0.0.2", guarded) as recorder:
        with pytest.raises(UnexpectedAnswer) as caught:
            await attempt(guarded, recorder, as_user(settings), tmp_path, how, host)
    assert caught.value.exit_code == 11
    assert "registry.test" in str(caught.value)
    assert f"--private-host {host}" in str(caught.value)
    assert recorder.seen == []


@pytest.mark.case("auth", "an allowed private host")
@pytest.mark.parametrize("host", ["storage.test", "127.0.0.2"])
@pytest.mark.parametrize("with_port", [True, False])
async def test_allowed_private_host_may_be_referred_to(
    guarded: GuardedRegistry,
    recorder: Recorder,
    settings: Settings,
    tmp_path: Path,
    names: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    with_port: bool,
) -> None:
    no_loopback(monkeypatch)
    access = Access(private_hosts=(f"{host}:{recorder.port}" if with_port else host,))
    await attempt(guarded, recorder, replace(settings, access=access), tmp_path, "redirect", host)
    assert recorder.seen


@pytest.mark.case("auth", "a registry in a private network")
async def test_private_registry_may_refer_to_private_and_public_addresses(
    guarded: GuardedRegistry,
    recorder: Recorder,
    settings: Settings,
    tmp_path: Path,
    names: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_loopback(monkeypatch)
    known = {"127.0.0.1": AddressScope.SITE, "127.0.0.2": AddressScope.SITE, "127.0.0.3": AddressScope.LINK}
    monkeypatch.setattr(transport_module, "address_scope", lambda text: address_scope_mapped(text, known))
    await attempt(guarded, recorder, settings, tmp_path, "redirect", "storage.test")
    assert recorder.seen
    (tmp_path / "2").mkdir()
    known["127.0.0.2"] = AddressScope.LINK
    with pytest.raises(UnexpectedAnswer, match="link-local"):
        other = replace(settings, cache=f"{settings.cache}2")
        await attempt(guarded, recorder, other, tmp_path / "2", "redirect", "127.0.0.2")


@pytest.mark.case("auth", "a name resolves to another address after the check")
async def test_name_rebound_after_check_gets_no_request(
    guarded: GuardedRegistry,
    recorder: Recorder,
    settings: Settings,
    tmp_path: Path,
    names: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_loopback(monkeypatch)
    names["turncoat.test"] = ["127.0.0.1"]
    inner, asked = socket.getaddrinfo, []

    def getaddrinfo(host: Any, *arguments: Any, **more: Any) -> Any:
        found = inner(host, *arguments, **more)
        if host == "turncoat.test":
            asked.append(host)
            names[host] = ["127.0.0.2"]
        return found

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(UnexpectedAnswer, match="private network"):
        await attempt(guarded, recorder, settings, tmp_path, "redirect", "turncoat.test")
    assert len(asked) == 2
    assert recorder.seen == []


async def test_names_are_not_resolved_behind_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes without a resolver do not wait for one; literal addresses are rejected nevertheless."""
    asked: list[Any] = []

    def getaddrinfo(*arguments: Any, **_: Any) -> list[Any]:
        asked.append(arguments)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    transport = Transport()
    assert await transport._guard(URL("https://storage.test/x"), "registry.test", is_proxied=True) is None
    for host in ("10.0.0.1", "169.254.169.254", "[::1]"):
        with pytest.raises(UnexpectedAnswer):
            await transport._guard(URL(f"https://{host}/x"), "registry.test", is_proxied=True)
    assert asked == []


# --- outputs, files, other processes


@pytest.mark.case("credentials", "no secret and no signed URL in the debug log")
@pytest.mark.parametrize("password", [PASSWORD, "hunter2-wrong"], ids=["accepted", "refused"])
async def test_debug_log_has_requests_without_secrets(
    tokens: FakeTokenServer, settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture, password: str
) -> None:
    tokens.users, tokens.is_open = {"user": PASSWORD}, False
    caplog.set_level(logging.DEBUG, logger="fastpull")
    async with Recorder() as other:
        registry = Redirecting(tokens, "blobs", 307, lambda path: SHAPES["a signed URL"](other, path))
        other.registry = registry
        async with registry:
            reference = publish(registry, [file("a")])
            path = write(tmp_path / "auth.json", {"auths": {registry.address: login("user", password)}})
            async with fastpull.Client(replace(settings, access=Access(authfile=str(path)))) as client:
                with nullcontext() if password == PASSWORD else pytest.raises(FastpullError):
                    await client.pull(reference, tmp_path / "out")
    lines = [record.getMessage() for record in caplog.records]
    assert any(
        re.match(rf"GET {registry.address}/v2/test/image/manifests/v1: (200|401) in [0-9.]+ s", line) for line in lines
    )
    assert any(line.startswith(f"GET {other.address}/") for line in lines) == (password == PASSWORD)
    assert not leaks("\n".join(lines).encode())
    assert not any("Signature" in line or "?" in line for line in lines)


@pytest.mark.case("credentials", "no secret in outputs, cache, trace and arguments")
async def test_outputs_cache_trace_and_arguments_have_no_secret(
    tokens: FakeTokenServer, guarded: GuardedRegistry, tmp_path: Path
) -> None:
    """Check a successful and a refused pull with all outputs enabled."""
    tokens.users, tokens.is_open = {"user": PASSWORD}, False
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FASTPULL_P")}
    for good in (True, False):
        password = PASSWORD if good else PASSWORD + "-wrong"
        command = [
            *(sys.executable, "-m", "fastpull", "pull", f"{guarded.address}/test/image:v1", "--creds", "user"),
            *("--password-stdin", "-o", f"{tmp_path}/out-{good}/", "--cache", f"{tmp_path}/cache", "--json", "-v"),
            *("--trace", f"{tmp_path}/trace-{good}.json"),
        ]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=-1, stdout=-1, stderr=-1, env={**environment, "PYTHONASYNCIODEBUG": "1"}
        )
        assert process.stdin is not None
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        output, errors = await process.communicate(f"{password}\n".encode())
        assert process.returncode == (0 if good else 12), errors
        assert good or b"'user'" in output, "the user is not named"
        assert [leaks(content) for content in (arguments, output, errors)] == [[], [], []]
    for name, content in files_below(tmp_path).items():
        assert not leaks(content), name


async def test_error_repr_has_no_secret(tokens: FakeTokenServer, guarded: GuardedRegistry, settings: Settings) -> None:
    """Format the error with its chain of causes and the repr of local objects, as a program would log it."""
    tokens.users, tokens.is_open = {"user": "another"}, False
    with pytest.raises(FastpullError) as caught:
        async with fastpull.Client(as_user(settings)) as client:
            await client.resolve(f"{guarded.address}/test/image:v1")
    words, error = "", [caught.value]
    while error:
        one: Any = error.pop()
        words += f"{one!r} {one} {vars(one)}"
        error += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
    assert not leaks(f"{words} {client.settings!r} {vars(client._keyring)!r}".encode())


@pytest.mark.parametrize(
    "location", ["http://h:hunter2@", "http://host/?sig=hunter2", "http://[::hunter2/", "x://hunter2"]
)
def test_redirect_error_omits_secrets(location: str) -> None:
    class SignedRedirect:
        url = URL("https://registry.example/v2/a/blobs/x?sig=hunter2")
        status = 307
        host = "registry.example"
        headers = {"Location": location}  # noqa: RUF012

    with pytest.raises(UnexpectedAnswer) as caught:
        client_module._redirect_target(SignedRedirect())  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)
