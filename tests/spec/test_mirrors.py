"""Mirrors and blocked registries: the requests to each endpoint, and the credentials that a mirror gets."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import fastpull
from fastpull.config.access import DEFAULT_ACCESS, Access
from fastpull.config.settings import Settings
from fastpull.errors import AccessDenied, DigestMismatch, Forbidden, NotFound, UnexpectedAnswer
from fastpull.registry import client as client_module
from fastpull.registry import endpoints as endpoints_module
from fastpull.registry.download import download as download_module
from fastpull.registry.http.retry import Backoff
from fastpull.telemetry.events import Event, Warned
from tests.support.layers import file, publish, stored
from tests.support.registry import (
    Account,
    Fault,
    FaultyRegistry,
    corrupted,
    docker_config,
    from_request,
    no_ranges,
    requested_range,
    status,
)

SIZE = 12 << 20
CONTENT = os.urandom(SIZE)
NAME = "example.test/team/image:v1"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module.Download, "backoff", Backoff(first_seconds=0.01, max_seconds=0.05))
    monkeypatch.setattr(client_module.RegistryClient, "backoff", Backoff(4, 0.01, 0.05))


@pytest.fixture
async def mirror() -> AsyncIterator[FaultyRegistry]:
    """Another registry with the same image under another name."""
    async with FaultyRegistry() as running:
        yield running


Pull = Callable[..., Awaitable[list[Event]]]


@pytest.fixture
def pull(registry: FaultyRegistry, mirror: FaultyRegistry, settings: Settings, tmp_path: Path) -> Pull:
    """Pull `NAME` with ``registry`` as origin and ``mirror`` as mirror, and check every byte."""
    layer = stored([file("f", CONTENT)], bytes)
    publish(registry, layer, name="team/image")
    publish(mirror, layer, name="copies/team/image")

    async def run(
        reference: str = NAME, of_mirror: str = "", of_table: str = "", first: str = "", access: Access = DEFAULT_ACCESS
    ) -> list[Event]:
        conf = f"""
        [[registry]]
        prefix = "example.test"
        location = "{registry.address}"
        {of_table}
        {first}
        [[registry.mirror]]
        location = "{mirror.address}/copies"
        {of_mirror}
        """
        (tmp_path / "registries.conf").write_text(conf)
        events: list[Event] = []
        own = replace(settings, registries_conf=str(tmp_path / "registries.conf"), access=access)
        async with fastpull.Client(own, on_event=events.append) as client:
            report = await client.pull(reference, fastpull.Directory(tmp_path / "out"))
        assert (tmp_path / "out/f").read_bytes() == CONTENT
        assert report.image.source == reference, "the image does not have the requested name"
        return events

    return run


def warnings(events: list[Event]) -> str:
    return "\n".join(event.message for event in events if isinstance(event, Warned))


def digest_of(registry: FaultyRegistry, name: str) -> str:
    return next(version for repository, version in registry.manifests if repository == name and ":" in version)


def only(asked: FaultyRegistry, *kinds: str) -> bool:
    return all(any(f"/{kind}/" in one.path for kind in kinds) or one.path == "/v2/" for one in asked.requests)


@pytest.mark.case("mirrors", "manifests, configs and blobs are fetched from the mirror")
async def test_mirror_serves_all_without_origin_request(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry
) -> None:
    assert warnings(await pull()) == ""
    assert registry.requests == []
    assert sum(mirror.sent.values()) >= SIZE


@pytest.mark.case("mirrors", "fallback on 401, 403, 404, 429, 5xx")
@pytest.mark.parametrize("code", [401, 403, 404, 429, 500, 502, 503, 504])
async def test_refused_request_falls_back_to_origin(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry, code: int
) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        mirror.requests.append(request)  # type: ignore[arg-type]
        return mirror.refusal(code, "NO")

    mirror._handle = refuse  # type: ignore[method-assign]
    told = warnings(await pull())
    assert f"mirror {mirror.address}/copies/team/image failed" in told
    assert f"trying {registry.address}/team/image" in told
    assert len(mirror.requests) <= 3, "the failed mirror was tried for each document and layer"


@pytest.mark.case("mirrors", "fallback from an unreachable mirror")
async def test_unreachable_mirror_falls_back_to_origin(pull: Pull, registry: FaultyRegistry) -> None:
    events = await pull(first='[[registry.mirror]]\nlocation = "127.0.0.1:9/nobody"\n')
    assert "mirror 127.0.0.1:9/nobody/team/image failed (cannot reach 127.0.0.1:9" in warnings(events)
    assert registry.requests == [], "the origin was used although the second mirror has the image"


@pytest.mark.case("mirrors", "fallback from an unresponsive mirror")
async def test_unresponsive_mirror_falls_back_to_origin(
    pull: Pull, mirror: FaultyRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints_module, "DOCUMENT_SECONDS", 0.3)

    async def hang(request: web.Request, name: str, version: str) -> web.StreamResponse:
        await asyncio.sleep(5)
        return mirror.refusal(500, "LATE")

    mirror.serve_manifest = hang  # type: ignore[method-assign]
    assert "no response within" in warnings(await pull())


async def gone(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """Close the connection without a response."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.case("mirrors", "fallback within a blob, for the missing bytes only")
@pytest.mark.parametrize("fault", [status(404), status(503), gone], ids=["404", "503", "gone"])
async def test_blob_broken_off_by_mirror_is_completed_by_origin(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry, fault: Fault
) -> None:
    mirror.faults.append(from_request(1, fault))
    await pull()
    from_origin = sum(registry.sent.values())
    assert 0 < from_origin < SIZE, "bytes of the mirror were requested again"
    assert only(registry, "blobs")


@pytest.mark.case("mirrors", "a mirror asks for a pause")
@pytest.mark.parametrize("code", [429, 503])
async def test_mirror_that_asks_for_a_pause_falls_back_at_once(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry, code: int
) -> None:
    mirror.faults.append(from_request(1, status(code, Retry_After="100")))
    async with asyncio.timeout(30):
        await pull()
    assert only(registry, "blobs")


@pytest.mark.case("mirrors", "a mirror stalls within a blob")
async def test_blob_stalled_by_mirror_is_completed_by_origin(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry
) -> None:
    async def silent(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        start, stop = requested_range(request, len(registry.blobs[digest]))
        said = f"bytes {start}-{stop - 1}/{len(registry.blobs[digest])}"
        answer = web.StreamResponse(status=206, headers={"Content-Range": said})
        answer.content_length = stop - start
        await answer.prepare(request)
        await asyncio.sleep(2)
        return answer

    mirror.faults.append(from_request(1, silent))
    await pull(access=Access(timeout=0.3))
    assert 0 < sum(registry.sent.values()) < SIZE


@pytest.mark.case("mirrors", "a short name is pulled by its alias")
async def test_alias_resolves_to_its_registry(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    publish(registry, [file("f")], name="team/image")
    (tmp_path / "registries.conf").write_text(f'[aliases]\napp = "{registry.address}/team/image"\n')
    async with fastpull.Client(replace(settings, registries_conf=str(tmp_path / "registries.conf"))) as client:
        for output, source in (("one", "app:v1"), ("two", "docker://app:v1")):
            report = await client.pull(source, tmp_path / output, "linux/amd64")
            assert report.image.source == f"{registry.address}/team/image:v1"


async def test_mirror_without_layers_warns_once(
    registry: FaultyRegistry, mirror: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    layers = [stored([file(f"f{number}", os.urandom(100))]) for number in range(30)]
    for one in (registry, mirror):
        publish(one, *layers, name="team/image")
    mirror.faults.append(status(404))
    text = f'[[registry]]\nprefix = "example.test"\nlocation = "{registry.address}"\n'
    (tmp_path / "registries.conf").write_text(f'{text}[[registry.mirror]]\nlocation = "{mirror.address}"\n')
    events: list[Event] = []
    own = replace(settings, registries_conf=str(tmp_path / "registries.conf"))
    async with fastpull.Client(own, on_event=events.append) as client:
        await client.pull(NAME, tmp_path / "out", "linux/amd64")
    assert sum(isinstance(event, Warned) for event in events) == 1


@pytest.mark.case("mirrors", "a mirror never gets the origin's credentials")
@pytest.mark.parametrize("basic", [True, False], ids=["basic", "token"])
@pytest.mark.parametrize("how", ["config.json", "--creds"])
async def test_mirror_gets_no_credentials_of_origin(
    pull: Pull,
    registry: FaultyRegistry,
    mirror: FaultyRegistry,
    basic: bool,
    how: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    registry.account = Account("user", "hunter2", basic_only=basic)
    mirror.account = Account("other", "secret", basic_only=basic)
    if how == "--creds":
        await pull(access=Access(username="user", password=fastpull.config.Secret("hunter2")))
    else:
        docker_config(str(tmp_path / "home"), registry.address, "user", "hunter2")
        await pull()
    assert mirror.requests
    assert {one.authorization for one in mirror.requests} == {""}
    assert any(one.authorization for one in registry.requests)


@pytest.mark.case("mirrors", "a mirror gets its own credentials")
async def test_mirror_gets_its_own_credentials(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    mirror.account = Account("other", "secret")
    docker_config(str(tmp_path / "home"), mirror.address, "other", "secret")
    await pull()
    assert registry.requests == []


@pytest.mark.case("mirrors", "corrupt bytes from a mirror: the next endpoint is used")
async def test_corrupt_blob_of_mirror_is_discarded_and_fetched_from_origin(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry, settings: Settings
) -> None:
    mirror.faults.append(corrupted())
    told = warnings(await pull())
    assert re.search(rf"wrong bytes of sha256:\w+ came from mirror {mirror.address}/copies/team/image", told)
    assert sum(registry.sent.values()) == SIZE + 1536, "bytes of the mirror were kept"
    assert not fastpull.cache.CacheManager(settings.cache).verify().corrupt


@pytest.mark.case("mirrors", "a partly corrupt blob from a mirror")
async def test_partly_corrupt_blob_of_mirror_is_discarded(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry
) -> None:
    """The mirror sends a corrupt beginning and fails; the origin sends the correct rest."""
    mirror.faults = [from_request(1, status(404)), corrupted()]
    told = warnings(await pull())
    assert "wrong bytes" in told
    assert sum(registry.sent.values()) > SIZE


@pytest.mark.case("mirrors", "a corrupt manifest or config from a mirror")
@pytest.mark.parametrize("what", ["manifest", "config"])
async def test_corrupt_document_of_mirror_falls_back_to_origin(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry, what: str
) -> None:
    digest = digest_of(mirror, "copies/team/image")
    media_type, body = mirror.manifests["copies/team/image", digest]
    if what == "manifest":
        mirror.manifests["copies/team/image", digest] = media_type, body.replace(b"config", b"CONFIG")
    else:
        config = next(one for one, content in mirror.blobs.items() if content.startswith(b'{"os"'))
        mirror.blobs[config] = mirror.blobs[config].replace(b"linux", b"LINUX")
    told = warnings(await pull(f"example.test/team/image@{digest}"))
    assert "got digest" in told
    assert registry.requests


@pytest.mark.case("mirrors", "corrupt bytes from every endpoint: a digest mismatch")
async def test_corrupt_blob_of_all_endpoints_is_digest_mismatch(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry, tmp_path: Path
) -> None:
    mirror.faults.append(corrupted())
    registry.faults.append(corrupted())
    with pytest.raises(DigestMismatch):
        await pull()
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "cache").glob("v1/partial/*/*/data")), "corrupt bytes were kept"


@pytest.mark.case("mirrors", "failure of all endpoints: the origin's error")
async def test_failure_of_all_endpoints_raises_error_of_origin(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry
) -> None:
    with pytest.raises(NotFound, match=registry.address):
        await pull("example.test/team/image:v9")
    registry.account = Account("user", "hunter2")
    with pytest.raises(AccessDenied, match=registry.address):
        await pull("example.test/team/image:v9")


@pytest.mark.case("mirrors", "mirror-by-digest-only")
async def test_digest_only_mirror_is_not_used_for_tags(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry
) -> None:
    await pull(of_table="mirror-by-digest-only = true")
    assert mirror.requests == []


@pytest.mark.case("mirrors", "mirror-by-digest-only with a pull by digest")
async def test_digest_only_mirror_is_used_for_digests(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry
) -> None:
    digest = digest_of(registry, "team/image")
    await pull(f"example.test/team/image@{digest}", of_table="mirror-by-digest-only = true")
    assert registry.requests == []


@pytest.mark.case("mirrors", "a cache without range support gets one request per blob")
async def test_mirror_without_ranges_sends_each_blob_once(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry
) -> None:
    mirror.faults.append(no_ranges)
    await pull()
    assert len([one for one in mirror.blob_requests() if one.range]) == 1
    assert sum(mirror.sent.values()) - SIZE < 1 << 20
    assert registry.requests == []


HTTPS, ANY = ("https",), ("https", "http")


@pytest.mark.case("mirrors", "insecure applies to its endpoint, --insecure to the registry")
@pytest.mark.parametrize(
    ("mirror_says", "changes", "expected"),
    [
        ("false", {}, [HTTPS, HTTPS]),
        ("true", {}, [ANY, HTTPS]),
        ("false", {"insecure": True}, [HTTPS, ANY]),
        ("false", {"access": Access(insecure_registries=("b.test",))}, [ANY, HTTPS]),
        ("false", {"access": Access(insecure_registries=("a.test:81",))}, [HTTPS, HTTPS]),
    ],
    ids=["nobody", "registries.conf", "--insecure", "the mirror named", "another port named"],
)
async def test_insecure_applies_only_to_its_endpoint(
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mirror_says: str,
    changes: dict[str, Any],
    expected: list[tuple[str, ...]],
) -> None:
    monkeypatch.setattr("fastpull.registry.pool.is_loopback", lambda _: False)
    (tmp_path / "registries.conf").write_text(
        f'[[registry]]\nlocation = "a.test"\n[[registry.mirror]]\nlocation = "b.test"\ninsecure = {mirror_says}'
    )
    changed = replace(settings, registries_conf=str(tmp_path / "registries.conf"), **changes)
    async with fastpull.Client(changed) as client:
        source = client._session.source("a.test/x")
        schemes = [one.client._schemes for one in source._endpoints._endpoints]  # type: ignore[attr-defined]
    assert schemes == expected


@pytest.mark.case("mirrors", "a blocked image causes no request")
async def test_blocked_image_causes_no_request(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry, tmp_path: Path
) -> None:
    with pytest.raises(Forbidden, match="registries.conf.*'example.test'.*blocked = true.*forbids"):
        await pull(of_table="blocked = true")
    assert registry.requests == []
    assert mirror.requests == []
    assert not (tmp_path / "out").exists()


async def test_failed_mirror_cools_down_and_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (endpoints_module.Endpoint(None, name, name == "one") for name in ("one", "two"))  # type: ignore[arg-type]
    clock = [100.0]
    monkeypatch.setattr("fastpull.registry.endpoints.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(endpoints_module.Endpoint, "__str__", lambda self: self.repository)
    asked: list[str] = []
    told: list[str] = []

    def request(candidates: endpoints_module.Candidates) -> str:
        for endpoint in candidates:
            with candidates.failover():
                asked.append(endpoint.repository)
                if endpoint is one:
                    raise UnexpectedAnswer("url", "broken", 500)
                return "response"
        raise candidates.error

    both = endpoints_module.Endpoints("name", (one, two), told.append)
    for now, expected in ((100.0, ["one", "two"]), (110.0, ["two"]), (161.0, ["one", "two"])):
        clock[0] = now
        asked.clear()
        assert request(both.candidates()) == "response"
        assert asked == expected
    assert told == ["one failed (unexpected answer (HTTP 500, broken) from: url), trying two"] * 2


async def test_local_failure_is_not_retried_at_another_endpoint(settings: Settings) -> None:
    one, two = (endpoints_module.Endpoint(None, name, name == "one") for name in ("one", "two"))  # type: ignore[arg-type]
    candidates = endpoints_module.Endpoints("name", (one, two)).candidates()
    with pytest.raises(fastpull.errors.CacheError, match="full for one"):
        for endpoint in candidates:
            with candidates.failover():
                raise fastpull.errors.CacheError("path", f"full for {endpoint.repository}")
