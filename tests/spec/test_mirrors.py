"""Mirrors and blocked names: who is asked for what, and what a mirror gets to see."""

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
    asked_range,
    corrupted,
    docker_config,
    from_request,
    no_ranges,
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
    """Another registry, which has the same image under another name."""
    async with FaultyRegistry() as running:
        yield running


Pull = Callable[..., Awaitable[list[Event]]]


@pytest.fixture
def pull(registry: FaultyRegistry, mirror: FaultyRegistry, settings: Settings, tmp_path: Path) -> Pull:
    """Pulls `NAME`, of which ``registry`` is the origin and ``mirror`` the mirror, and checks every byte."""
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
        assert report.image.source == reference, "whoever gave it, the image keeps the name that was asked for"
        return events

    return run


def warnings(events: list[Event]) -> str:
    return "\n".join(event.message for event in events if isinstance(event, Warned))


def digest_of(registry: FaultyRegistry, name: str) -> str:
    return next(version for repository, version in registry.manifests if repository == name and ":" in version)


def only(asked: FaultyRegistry, *kinds: str) -> bool:
    return all(any(f"/{kind}/" in one.path for kind in kinds) or one.path == "/v2/" for one in asked.asked)


@pytest.mark.case("mirrors", "manifests, configs and blobs come from the mirror")
async def test_a_mirror_gives_all_and_the_origin_is_not_asked(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry
) -> None:
    assert warnings(await pull()) == ""
    assert registry.asked == []
    assert sum(mirror.sent.values()) >= SIZE


@pytest.mark.case("mirrors", "fallback on 401, 403, 404, 429, 5xx")
@pytest.mark.parametrize("code", [401, 403, 404, 429, 500, 502, 503, 504])
async def test_what_a_mirror_refuses_the_origin_gives(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry, code: int
) -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        mirror.asked.append(request)  # type: ignore[arg-type]
        return mirror.refusal(code, "NO")

    mirror._handle = refuse  # type: ignore[method-assign]
    told = warnings(await pull())
    assert f"mirror {mirror.address}/copies/team/image failed" in told
    assert f"trying {registry.address}/team/image" in told
    assert len(mirror.asked) <= 3, "it is not asked for each document and layer again"


@pytest.mark.case("mirrors", "fallback when a mirror is not reachable")
async def test_a_mirror_that_is_not_there_is_passed_over(pull: Pull, registry: FaultyRegistry) -> None:
    events = await pull(first='[[registry.mirror]]\nlocation = "127.0.0.1:9/nobody"\n')
    assert "mirror 127.0.0.1:9/nobody/team/image failed (cannot reach 127.0.0.1:9" in warnings(events)
    assert registry.asked == [], "the second mirror has it"


@pytest.mark.case("mirrors", "fallback when a mirror does not answer")
async def test_a_mirror_that_does_not_answer_is_passed_over(
    pull: Pull, mirror: FaultyRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints_module, "DOCUMENT_SECONDS", 0.3)

    async def hang(request: web.Request, name: str, version: str) -> web.StreamResponse:
        await asyncio.sleep(5)
        return mirror.refusal(500, "LATE")

    mirror.serve_manifest = hang  # type: ignore[method-assign]
    assert "no response within" in warnings(await pull())


async def gone(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    """Closes the connection, and answers nothing."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.case("mirrors", "fallback in the middle of a blob, without what came already")
@pytest.mark.parametrize("fault", [status(404), status(503), gone], ids=["404", "503", "gone"])
async def test_a_mirror_that_stops_in_mid_blob_is_completed_by_the_origin(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry, fault: Fault
) -> None:
    mirror.faults.append(from_request(1, fault))
    await pull()
    from_origin = sum(registry.sent.values())
    assert 0 < from_origin < SIZE, "what the mirror gave did not come again"
    assert only(registry, "blobs")


@pytest.mark.case("mirrors", "a mirror that asks for a pause")
@pytest.mark.parametrize("code", [429, 503])
async def test_nobody_waits_for_a_mirror_that_asks_for_a_pause(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry, code: int
) -> None:
    mirror.faults.append(from_request(1, status(code, Retry_After="100")))
    async with asyncio.timeout(30):
        await pull()
    assert only(registry, "blobs")


@pytest.mark.case("mirrors", "a mirror that falls silent in the middle of a blob")
async def test_a_mirror_that_falls_silent_is_completed_by_the_origin(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry
) -> None:
    async def silent(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        start, stop = asked_range(request, len(registry.blobs[digest]))
        said = f"bytes {start}-{stop - 1}/{len(registry.blobs[digest])}"
        answer = web.StreamResponse(status=206, headers={"Content-Range": said})
        answer.content_length = stop - start
        await answer.prepare(request)
        await asyncio.sleep(2)
        return answer

    mirror.faults.append(from_request(1, silent))
    await pull(access=Access(timeout=0.3))
    assert 0 < sum(registry.sent.values()) < SIZE


@pytest.mark.case("mirrors", "a short name is pulled from where its alias leads")
async def test_an_alias_leads_to_its_registry(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    publish(registry, [file("f")], name="team/image")
    (tmp_path / "registries.conf").write_text(f'[aliases]\napp = "{registry.address}/team/image"\n')
    async with fastpull.Client(replace(settings, registries_conf=str(tmp_path / "registries.conf"))) as client:
        for output, source in (("one", "app:v1"), ("two", "docker://app:v1")):
            report = await client.pull(source, tmp_path / output, "linux/amd64")
            assert report.image.source == f"{registry.address}/team/image:v1"


async def test_one_warning_for_a_mirror_that_has_no_layer(
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


@pytest.mark.case("mirrors", "a mirror never sees the origin's credentials")
@pytest.mark.parametrize("basic", [True, False], ids=["basic", "token"])
@pytest.mark.parametrize("how", ["config.json", "--creds"])
async def test_a_mirror_never_sees_the_origin_s_credentials(
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
    assert mirror.asked
    assert {one.authorization for one in mirror.asked} == {""}
    assert any(one.authorization for one in registry.asked)


@pytest.mark.case("mirrors", "a mirror has credentials of its own")
async def test_a_mirror_gets_its_own_credentials(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    mirror.account = Account("other", "secret")
    docker_config(str(tmp_path / "home"), mirror.address, "other", "secret")
    await pull()
    assert registry.asked == []


@pytest.mark.case("mirrors", "a lying mirror is a mismatch, and the next source is asked")
async def test_wrong_bytes_of_a_blob_are_thrown_away_and_come_from_the_origin(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry, settings: Settings
) -> None:
    mirror.faults.append(corrupted())
    told = warnings(await pull())
    assert re.search(rf"wrong bytes of sha256:\w+ came from mirror {mirror.address}/copies/team/image", told)
    assert sum(registry.sent.values()) == SIZE + 1536, "all of it, nothing of the mirror's is kept"
    assert not fastpull.cache.CacheManager(settings.cache).verify().corrupt


@pytest.mark.case("mirrors", "a mirror that lies about half a blob")
async def test_wrong_bytes_beside_right_ones_are_thrown_away_with_them(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry
) -> None:
    """The mirror gives a wrong beginning and fails, the origin a right end."""
    mirror.faults = [from_request(1, status(404)), corrupted()]
    told = warnings(await pull())
    assert "wrong bytes" in told
    assert sum(registry.sent.values()) > SIZE


@pytest.mark.case("mirrors", "a mirror that lies about a manifest or config")
@pytest.mark.parametrize("what", ["manifest", "config"])
async def test_a_wrong_document_of_a_mirror_is_a_mismatch_and_the_origin_is_asked(
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
    assert registry.asked


@pytest.mark.case("mirrors", "when every source lies, it is a mismatch")
async def test_when_the_origin_lies_too_it_is_a_mismatch(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry, tmp_path: Path
) -> None:
    mirror.faults.append(corrupted())
    registry.faults.append(corrupted())
    with pytest.raises(DigestMismatch):
        await pull()
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "cache").glob("v1/partial/*/*/data")), "nothing wrong is kept"


@pytest.mark.case("mirrors", "when nobody has it, the origin's answer is told")
async def test_when_nobody_has_it_the_origin_s_answer_is_told(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry
) -> None:
    with pytest.raises(NotFound, match=registry.address):
        await pull("example.test/team/image:v9")
    registry.account = Account("user", "hunter2")
    with pytest.raises(AccessDenied, match=registry.address):
        await pull("example.test/team/image:v9")


@pytest.mark.case("mirrors", "mirror-by-digest-only")
async def test_a_mirror_for_digests_is_not_asked_for_tags(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry
) -> None:
    await pull(of_table="mirror-by-digest-only = true")
    assert mirror.asked == []


@pytest.mark.case("mirrors", "mirror-by-digest-only, a pull by digest")
async def test_a_mirror_for_digests_is_asked_for_digests(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry
) -> None:
    digest = digest_of(registry, "team/image")
    await pull(f"example.test/team/image@{digest}", of_table="mirror-by-digest-only = true")
    assert registry.asked == []


@pytest.mark.case("mirrors", "a cache without ranges is used with one stream")
async def test_a_mirror_that_answers_ranges_with_whole_bodies_sends_each_blob_once(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry
) -> None:
    mirror.faults.append(no_ranges)
    await pull()
    assert len([one for one in mirror.blob_requests() if one.range]) == 1
    assert sum(mirror.sent.values()) - SIZE < 1 << 20
    assert registry.asked == []


HTTPS, ANY = ("https",), ("https", "http")


@pytest.mark.case("mirrors", "insecure is for the place that says it, --insecure for the registry")
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
async def test_plain_http_is_for_the_place_that_is_meant(
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
        source = client._registry_source("a.test/x")
        schemes = [one.client._schemes for one in source._endpoints._endpoints]  # type: ignore[attr-defined]
    assert schemes == expected


@pytest.mark.case("mirrors", "a blocked name is not asked for")
async def test_a_blocked_name_is_not_asked_for(
    pull: Pull, registry: FaultyRegistry, mirror: FaultyRegistry, tmp_path: Path
) -> None:
    with pytest.raises(Forbidden, match="registries.conf.*'example.test'.*blocked = true.*forbids"):
        await pull(of_table="blocked = true")
    assert registry.asked == []
    assert mirror.asked == []
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
