"""The registry client against valid and invalid behavior of registries."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from types import MappingProxyType

import pytest
from aiohttp import web
from yarl import URL

import fastpull
from fastpull.config.access import Access
from fastpull.config.settings import Settings
from fastpull.errors import (
    AccessDenied,
    FastpullError,
    InvalidSetting,
    NotFound,
    RateLimited,
    SizeMismatch,
    TransportError,
    UnexpectedAnswer,
)
from fastpull.oci.descriptor import Descriptor
from fastpull.oci.digest import Digest
from fastpull.registry import client as client_module
from fastpull.registry.auth.challenges import Challenge
from fastpull.registry.auth.tokens import realm_of
from fastpull.registry.client import RegistryClient
from fastpull.registry.download import download as download_module
from fastpull.registry.download.ranges import FIRST_RANGE
from fastpull.registry.http.retry import Backoff
from fastpull.registry.http.transport import Transport
from fastpull.telemetry.events import Event, Retrying, Warned
from tests.support.layers import file, publish, stored
from tests.support.registry import (
    Account,
    Fault,
    FaultyRegistry,
    RecordedRequest,
    docker_config,
    from_request,
    no_length,
    no_ranges,
    redirect,
    requested_range,
    reset,
    status,
    times,
    together,
    truncated,
    wrong_content_range,
)
from tests.support.slow_link import serve

SIZE = 40 << 20
CONTENT = os.urandom(SIZE)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module.Download, "backoff", Backoff(first_seconds=0.01, max_seconds=0.05))
    monkeypatch.setattr(client_module.RegistryClient, "backoff", Backoff(4, 0.01, 0.05))


@pytest.fixture
async def elsewhere() -> AsyncIterator[FaultyRegistry]:
    """A storage service on another host, which registries redirect to."""
    async with FaultyRegistry() as running:
        yield running


async def pull(reference: str, tmp_path: Path, settings: Settings) -> list[Event]:
    """Pull, and check every byte."""
    events: list[Event] = []
    async with fastpull.Client(settings, on_event=events.append) as client:
        await client.pull(reference, fastpull.Directory(tmp_path / "out", force=True))
    assert (tmp_path / "out/f").read_bytes() == CONTENT
    return events


async def refused(reference: str, tmp_path: Path, settings: Settings, kind: type[FastpullError]) -> FastpullError:
    with pytest.raises(kind) as caught:
        await pull(reference, tmp_path, settings)
    assert [name for name in os.listdir(tmp_path) if name not in ("cache", "home")] == []
    return caught.value


def big(registry: FaultyRegistry) -> str:
    """Publish an image with one large uncompressed layer, whose size is that of its content."""
    from tests.support.layers import stored  # noqa: PLC0415

    return publish(registry, stored([file("f", CONTENT)], bytes))


def layer_digest(registry: FaultyRegistry) -> str:
    digest: str = json.loads(registry.manifests["test/image", "v1"][1])["layers"][0]["digest"]
    return digest


def ranges(asked: list[RecordedRequest]) -> list[tuple[int, int]]:
    found = [re.fullmatch(r"bytes=(\d+)-(\d+)", one.range) for one in asked]
    return [(int(match[1]), int(match[2]) + 1) for match in found if match]


# --- ranges


@pytest.mark.case("http", "closed ranges, over several connections, without gap or overlap")
async def test_blob_is_fetched_in_closed_ranges_over_several_connections(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    await pull(big(registry), tmp_path, settings)
    asked = sorted(ranges(registry.blob_requests()))
    assert len(asked) > 2
    assert asked[0][0] == 0
    assert all(one[1] == other[0] for one, other in pairwise(asked)), "ranges have a gap or overlap"
    assert registry.sent[layer_digest(registry)] == registry.blobs[layer_digest(registry)].__len__()
    assert all(one.method == "GET" for one in registry.requests)


@pytest.mark.case("http", "Accept-Encoding: identity")
async def test_requests_accept_only_identity_encoding(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    seen = set()

    async def look(_: FaultyRegistry, request: web.Request, __: str) -> None:
        seen.add(request.headers.get("Accept-Encoding"))
        seen.add(request.headers.get("User-Agent", "").split("/")[0])

    registry.faults.append(look)
    await pull(big(registry), tmp_path, settings)
    assert seen == {"identity", "fastpull"}


@pytest.mark.case("http", "200 for a range: one stream")
@pytest.mark.parametrize("answer", [no_ranges, no_length], ids=["200", "chunked"])
async def test_host_without_ranges_sends_blob_once(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, answer: Fault
) -> None:
    registry.faults.append(answer)
    await pull(big(registry), tmp_path, settings)
    assert len([one for one in registry.blob_requests() if one.range]) == 1


@pytest.mark.case("http", "200 for a range after 206 for others")
async def test_host_that_stops_supporting_ranges_sends_the_rest_in_one_stream(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    registry.faults.append(from_request(1, no_ranges))
    await pull(big(registry), tmp_path, settings)


@pytest.mark.case("http", "206 with a Content-Range other than requested")
@pytest.mark.parametrize(
    "text",
    [
        "bytes 0-{last}/{size}",
        "bytes {start}-{size}/{size}",
        "bytes 5-10/{size}",
        "items {start}-{last}/{size}",
        "",
        "bytes */{size}",
    ],
)
async def test_wrong_content_range_is_rejected(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, text: str
) -> None:
    registry.faults.append(times(2, from_request(1, wrong_content_range(text))))
    await pull(big(registry), tmp_path, settings)


@pytest.mark.case("http", "206 with a persistently wrong Content-Range")
async def test_persistently_wrong_content_range_is_an_error(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    registry.faults.append(wrong_content_range("bytes 1-2/{size}"))
    error = await refused(big(registry), tmp_path, settings, UnexpectedAnswer)
    assert "requested bytes 0-" in str(error)
    assert registry.address in str(error)


@pytest.mark.case("http", "206 with a total other than the descriptor's size")
async def test_total_other_than_descriptor_is_size_mismatch(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    registry.faults.append(wrong_content_range("bytes {start}-{last}/99999999999"))
    await refused(big(registry), tmp_path, settings, SizeMismatch)


@pytest.mark.case("http", "206 with less than requested")
async def test_shorter_range_than_requested_is_completed(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    async def short(running: FaultyRegistry, request: web.Request, digest: str) -> web.Response:
        start, stop = ranges([RecordedRequest("", "", request.headers["Range"], "", 0)])[0]
        stop = min(stop, start + 3_000_000, len(running.blobs[digest]))
        said = f"bytes {start}-{stop - 1}/{len(running.blobs[digest])}"
        return web.Response(status=206, body=running.blobs[digest][start:stop], headers={"Content-Range": said})

    registry.faults.append(short)
    await pull(big(registry), tmp_path, settings)


# --- connections that break


@pytest.mark.case("http", "a truncated or reset body is resumed")
@pytest.mark.parametrize("fault", [truncated, reset])
async def test_broken_range_resumes_where_it_broke(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, fault: Fault
) -> None:
    registry.faults.append(times(4, fault))
    reference = big(registry)
    events = await pull(reference, tmp_path, settings)
    halves = 4 * FIRST_RANGE // 2  # bytes of the broken responses; a reset may discard half of them
    assert registry.sent[layer_digest(registry)] <= SIZE + halves // 2, "received bytes were requested again"
    assert sum(isinstance(event, Retrying) for event in events) >= 4


@pytest.mark.case("http", "bodies that end with their connection, complete or truncated")
@pytest.mark.parametrize("is_whole", [True, False])
async def test_body_may_end_with_its_connection(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, is_whole: bool
) -> None:
    reference = big(registry)
    sent: list[int] = []

    async def unmeasured(running: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        body = running.blobs[digest]
        start, stop = (0, len(body)) if is_whole else requested_range(request, len(body))
        end = stop if is_whole or len(sent) > 3 else (start + stop) // 2
        sent.append(end - start)
        partial = b"206 Partial Content\r\nContent-Range: bytes %d-%d/%d" % (start, stop - 1, len(body))
        said = b"200 OK" if is_whole else partial
        assert isinstance(request.transport, asyncio.Transport)
        request.transport.write(b"HTTP/1.1 %s\r\nConnection: close\r\n\r\n" % said)
        request.transport.write(body[start:end])
        request.transport.close()
        return web.Response()

    registry.faults.append(unmeasured)
    await pull(reference, tmp_path, settings)
    assert sum(sent) == len(registry.blobs[layer_digest(registry)]), "bytes were sent twice"


@pytest.mark.case("http", "an ETag changes during a pull")
async def test_digests_are_verified_and_etags_ignored(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    async def another(running: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        body = running.blobs[digest]
        start, stop = requested_range(request, len(body))
        running.sent[digest] += stop - start
        headers = {"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}", "ETag": f'"{start}"'}
        return web.Response(status=206, body=body[start:stop], headers=headers)

    reference = big(registry)
    registry.faults.append(another)
    await pull(reference, tmp_path, settings)
    assert registry.sent[layer_digest(registry)] == len(registry.blobs[layer_digest(registry)])


@pytest.mark.case("http", "many breaks, each after some progress")
async def test_breaks_with_progress_are_retried_without_limit(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    """Break more often than attempts are allowed, each time after some progress."""
    registry.faults.append(times(40, truncated))
    await pull(big(registry), tmp_path, settings)


@pytest.mark.case("http", "a host that never sends data")
async def test_host_without_progress_fails(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    async def nothing(_: FaultyRegistry, request: web.Request, __: str) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    registry.faults.append(nothing)
    error = await refused(big(registry), tmp_path, settings, TransportError)
    assert error.exit_code == 10
    assert registry.address in str(error)


@pytest.mark.case("http", "a stalled connection")
async def test_stalled_connection_is_closed(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    settings = replace(settings, access=Access(timeout=0.3))

    async def stall(running: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        answer = web.StreamResponse(status=206)
        start, stop = ranges([RecordedRequest("", "", request.headers["Range"], "", 0)])[0]
        stop = min(stop, len(running.blobs[digest]))
        answer.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(running.blobs[digest])}"
        answer.content_length = stop - start
        await answer.prepare(request)
        await answer.write(running.blobs[digest][start : start + 1000])
        await asyncio.sleep(3)
        return answer

    registry.faults.append(times(1, stall))
    events = await pull(big(registry), tmp_path, settings)
    assert any(isinstance(event, Retrying) and "received no data" in event.reason for event in events)


# --- error statuses


@pytest.mark.case("http", "transient 408, 429, 5xx")
@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
async def test_transient_status_is_retried(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, code: int
) -> None:
    registry.faults.append(times(3, status(code)))
    await pull(big(registry), tmp_path, settings)


@pytest.mark.case("http", "permanent 401, 403, 404, 416, 418, 500")
@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        (404, NotFound, 11),
        (403, AccessDenied, 12),
        (401, AccessDenied, 12),
        (416, UnexpectedAnswer, 11),
        (418, UnexpectedAnswer, 11),
        (500, UnexpectedAnswer, 11),
    ],
)
async def test_permanent_status_raises_its_error(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, code: int, kind: type[FastpullError], exit_code: int
) -> None:
    registry.faults.append(status(code))
    error = await refused(big(registry), tmp_path, settings, kind)
    assert error.exit_code == exit_code


@pytest.mark.case("http", "Retry-After applies to all connections")
async def test_retry_after_applies_to_all_connections(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    """Refuse one of two connections while the other is busy, so that no request is in flight."""
    numbers, both_asked, one_told = count(), asyncio.Event(), asyncio.Event()
    refused_at = []

    async def refuse_one(running: FaultyRegistry, _: web.Request, __: str) -> web.StreamResponse | None:
        number = next(numbers)
        if number == 1:
            await both_asked.wait()
            refused_at.append(time.monotonic())
            return running.refusal(429, "FAULT", {"Retry-After": "1"})
        if number == 2:
            both_asked.set()
            await one_told.wait()
        return None

    def on_event(event: Event) -> None:
        if isinstance(event, Retrying):
            one_told.set()

    registry.faults.append(refuse_one)
    async with fastpull.Client(replace(settings, connections=2), on_event=on_event) as client:
        await client.pull(big(registry), tmp_path / "out")
    later = [one.time for one in registry.blob_requests() if one.range][3:]
    assert min(later) - refused_at[0] >= 1, "a request was sent during the pause"
    assert len(later) > 1


@pytest.mark.case("http", "Retry-After of an hour")
async def test_too_long_retry_after_is_an_error(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    registry.faults.append(status(429, Retry_After="3600"))
    error = await refused(big(registry), tmp_path, settings, RateLimited)
    assert "Try again in 3600 s" in str(error)


@pytest.mark.case("http", "503 for a manifest")
async def test_document_request_is_retried(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    left = [3]
    original = registry.serve_manifest

    async def flaky(request: web.Request, name: str, version: str) -> web.StreamResponse:
        left[0] -= 1
        return registry.refusal(503, "BUSY") if left[0] >= 0 else await original(request, name, version)

    registry.serve_manifest = flaky  # type: ignore[method-assign]
    await pull(big(registry), tmp_path, settings)


@pytest.mark.case("http", "404 for a tag")
async def test_unknown_tag_error_names_tag_repository_and_registry(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    error = await refused(f"{registry.address}/test/none:v9", tmp_path, settings, NotFound)
    assert all(word in str(error) for word in ("'v9'", "test/none", registry.address))


@pytest.mark.case("http", "an unresolvable name")
async def test_unknown_host_fails_without_retry(settings: Settings, tmp_path: Path) -> None:
    error = await refused("registry.invalid/a/b:v1", tmp_path, settings, TransportError)
    assert "registry.invalid" in str(error)
    assert "cannot resolve its name" in str(error)


@pytest.mark.case("http", "a closed port")
async def test_closed_port_error_names_address(settings: Settings, tmp_path: Path) -> None:
    error = await refused("127.0.0.1:9/a/b:v1", tmp_path, settings, TransportError)
    assert "127.0.0.1:9" in str(error)


# --- error messages


async def gone(registry: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.case("http", "errors name host, reference, origin of credentials and next step")
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (gone, TransportError),
        (truncated, TransportError),
        (status(403), AccessDenied),
        (status(404), NotFound),
        (status(429, Retry_After="86400"), RateLimited),
        (status(500), UnexpectedAnswer),
        (redirect(lambda digest: "/"), NotFound),
        (wrong_content_range("bytes 1-2/3"), UnexpectedAnswer),
    ],
    ids=["gone", "truncated", "403", "404", "429", "500", "redirect", "content-range"],
)
async def test_every_failure_names_host_reference_credentials_and_advice(
    registry: FaultyRegistry,
    settings: Settings,
    tmp_path: Path,
    fault: Fault,
    kind: type[FastpullError],
    is_known: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(download_module.Download, "backoff", Backoff(2, first_seconds=0.01))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if is_known:
        registry.account = Account("somebody", "hunter2")
        docker_config(str(tmp_path / "home"), registry.address, "somebody", "hunter2")
    reference = publish(registry, [file("f")])
    registry.faults.append(fault)
    error = await refused(reference, tmp_path, settings, kind)
    for fact in (registry.address, reference.partition(":v1")[0] if kind is AccessDenied else reference):
        assert fact in str(error)
    assert (".docker/config.json" if is_known else "without credentials") in str(error)
    assert "hunter2" not in str(error)
    assert error.hint


# --- redirects


@pytest.mark.case("http", "redirects of blobs are remembered")
async def test_redirect_of_blob_is_remembered(
    registry: FaultyRegistry, elsewhere: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = big(registry)
    elsewhere.blobs = registry.blobs
    registry.faults.append(redirect(lambda digest: f"http://{elsewhere.address}/v2/x/blobs/{digest}?sig=a%2Fb"))
    await pull(reference, tmp_path, settings)
    assert len([one for one in registry.blob_requests() if one.range]) == 1
    assert len(ranges(elsewhere.requests)) > 2


@pytest.mark.case("http", "a signed URL expires during a pull")
async def test_expired_location_is_renewed(
    registry: FaultyRegistry, elsewhere: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = big(registry)
    elsewhere.blobs = registry.blobs
    valid = ["first"]
    registry.faults.append(redirect(lambda digest: f"http://{elsewhere.address}/v2/x/blobs/{digest}?sig={valid[0]}"))
    served = [0]

    async def expire(running: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse | None:
        served[0] += 1
        if served[0] == 2:
            valid[0] = "second"
        return None if request.query["sig"] == valid[0] else running.refusal(403, "EXPIRED")

    elsewhere.faults.append(expire)
    await pull(reference, tmp_path, settings)
    assert elsewhere.sent[layer_digest(registry)] <= 1.05 * SIZE + (1 << 20)


@pytest.mark.case("http", "redirects to another host: no credentials")
async def test_redirect_target_gets_no_credentials(
    registry: FaultyRegistry,
    elsewhere: FaultyRegistry,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for basic in (True, False):
        registry.account = Account("user", "hunter2", basic_only=basic)
        docker_config(str(tmp_path / "home"), registry.address, "user", "hunter2")
        elsewhere.requests.clear()
        reference = big(registry)
        elsewhere.blobs = registry.blobs
        registry.faults = [redirect(lambda digest: f"http://{elsewhere.address}/v2/x/blobs/{digest}")]
        await pull(reference, tmp_path, replace(settings, cache=f"{settings.cache}-{basic}"))
        assert elsewhere.requests
        assert {one.authorization for one in elsewhere.requests} == {""}


@pytest.mark.case("http", "an expired location is renewed once for all connections")
async def test_expired_location_is_renewed_once_for_all_connections(
    registry: FaultyRegistry, elsewhere: FaultyRegistry, settings: Settings
) -> None:
    content = os.urandom(50 * 1000)
    descriptor = Descriptor("application/octet-stream", Digest.of(content), len(content))
    registry.blobs[str(descriptor.digest)] = content
    elsewhere.blobs = registry.blobs
    valid = ["first"]

    async def away(_: FaultyRegistry, __: web.Request, digest: str) -> web.Response:
        await asyncio.sleep(0.05)
        return web.Response(
            status=307, headers={"Location": f"http://{elsewhere.address}/v2/x/blobs/{digest}?sig={valid[0]}"}
        )

    async def check(running: FaultyRegistry, request: web.Request, _: str) -> web.StreamResponse | None:
        return None if request.query["sig"] == valid[0] else running.refusal(403, "EXPIRED")

    registry.faults.append(away)
    elsewhere.faults.append(check)

    async def fetch(client: RegistryClient, number: int) -> bytes:
        found = b""
        async with client.open_range("x", descriptor, number * 1000, number * 1000 + 1000) as body:
            while pieces := await body.pieces():
                found += b"".join(pieces)
        return found

    async with Transport() as transport:
        client = RegistryClient(transport, registry.address, registry.address, schemes=("http",))
        await fetch(client, 0)
        valid[0] = "second"
        pieces = await asyncio.gather(*(fetch(client, number) for number in range(50)))
    assert b"".join(pieces) == content
    assert len(registry.blob_requests()) == 2


@pytest.mark.case("http", "ten redirects")
async def test_ten_redirects_are_followed(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    reference = big(registry)
    registry.faults.append(times(10, redirect(lambda digest: f"/v2/test/image/blobs/{digest}")))
    await pull(reference, tmp_path, settings)


@pytest.mark.case("http", "more than ten redirects")
async def test_redirect_loop_is_an_error(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    reference = big(registry)
    registry.faults.append(redirect(lambda digest: f"/v2/test/image/blobs/{digest}"))
    error = await refused(reference, tmp_path, settings, UnexpectedAnswer)
    assert "more than 10 redirects" in str(error)


@pytest.mark.case("http", "redirects to an invalid URL or another scheme")
@pytest.mark.parametrize("location", ["", "ftp://host/x", "http://", "//", "http://[bad", "file:///etc/passwd"])
async def test_invalid_redirect_is_an_error(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, location: str
) -> None:
    reference = big(registry)
    registry.faults.append(redirect(lambda _: location))
    await refused(reference, tmp_path, settings, FastpullError)


@pytest.mark.case("http", "redirects from https to http")
def test_redirect_from_https_to_http_is_an_error() -> None:
    class RedirectResponse:
        url = URL("https://registry.example/v2/a/blobs/x")
        status = 307
        headers = MappingProxyType({"Location": "http://storage.example/x?sig=secret"})

    with pytest.raises(UnexpectedAnswer, match="plain http at storage.example") as caught:
        client_module._redirect_target(RedirectResponse())  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


# --- authorization


@pytest.mark.case("auth", "Bearer, anonymous")
async def test_anonymous_token_is_fetched_once(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    registry.account = Account()
    await pull(big(registry), tmp_path, settings)
    assert registry.account.issued == 1


@pytest.mark.case("auth", "Basic, and Bearer with a login")
@pytest.mark.parametrize("basic", [True, False], ids=["basic", "token"])
async def test_credentials_from_docker_config_are_used(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, basic: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    registry.account = Account("user", "hunter2", basic_only=basic)
    reference = big(registry)
    error = await refused(reference, tmp_path, settings, AccessDenied)
    assert "without credentials" in str(error)
    assert f"docker login {registry.address}" in str(error)
    docker_config(str(tmp_path / "home"), registry.address, "user", "wrong-secret")
    error = await refused(reference, tmp_path, settings, AccessDenied)
    assert "'user'" in str(error)
    assert ".docker/config.json" in str(error)
    assert "wrong-secret" not in str(error) + repr(error)
    docker_config(str(tmp_path / "home"), registry.address, "user", "hunter2")
    await pull(reference, tmp_path, settings)


async def test_malformed_docker_config_fails_before_token_request(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home/.docker").mkdir(parents=True)
    (tmp_path / "home/.docker/config.json").write_text("{")
    registry.account = Account()
    error = await refused(big(registry), tmp_path, settings, InvalidSetting)
    assert "config.json" in str(error)
    assert "line 1" in str(error)
    assert not [one for one in registry.requests if one.path == "/token"]


@pytest.mark.case("auth", "401 during a pull: one new token, no range lost")
async def test_token_expired_during_pull_is_renewed_once(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    registry.account = Account()
    served = [0]

    async def revoke(running: FaultyRegistry, request: web.Request, _: str) -> web.StreamResponse | None:
        assert running.account is not None
        served[0] += 1
        if served[0] == 2:
            running.account.valid.clear()
            return running._challenge(request)
        return None

    registry.faults.append(revoke)
    await pull(big(registry), tmp_path, settings)
    assert registry.account.issued == 2, "several connections renewed the token"
    assert registry.sent[layer_digest(registry)] <= 1.05 * SIZE


@pytest.mark.case("auth", "60 layers share a token")
async def test_concurrent_requests_share_one_token(registry: FaultyRegistry, settings: Settings) -> None:
    registry.account = Account()
    reference = publish(registry, *[[file(f"f{n}", os.urandom(100))] for n in range(60)])
    async with fastpull.Client(settings) as client:
        await client.warm([reference])
    assert registry.account.issued == 1


async def test_short_lived_token_is_renewed_before_expiry(
    registry: FaultyRegistry, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.account = Account(lifetime_seconds=100)
    reference = publish(registry, [file("f")])
    async with fastpull.Client(settings) as client:
        await client.resolve(reference)
        clock = time.monotonic
        monkeypatch.setattr("fastpull.registry.auth.authorizer.time.monotonic", lambda: clock() + 95)
        await client.resolve(reference)
        refused_now = [one for one in registry.requests[-4:] if one.path.startswith("/v2/") and not one.authorization]
    assert registry.account.issued == 2
    assert len(refused_now) <= 1


@pytest.mark.case("auth", "a malformed token response")
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{}", 200),
        (b"no json", 200),
        (b'{"token": ""}', 200),
        (b'{"token": "a\\nb"}', 200),
        (b'{"token": 5}', 200),
        (b"[]", 200),
        (b"x" * (2 << 20), 200),
        (b"", 500),
    ],
)
async def test_malformed_token_response_is_an_error(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, body: bytes, code: int
) -> None:
    registry.account = Account()
    registry._token = lambda _: web.Response(body=body, status=code)  # type: ignore[method-assign,assignment]
    error = await refused(big(registry), tmp_path, settings, FastpullError)
    assert error.exit_code == 11


@pytest.mark.case("auth", "unsupported challenges")
@pytest.mark.parametrize(
    "challenge",
    ["", "Negotiate", "Bearer", 'Bearer realm="no url"', 'Bearer realm="file:///etc/passwd"', 'Basic realm="x"'],
)
async def test_unsupported_challenge_is_an_error(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, challenge: str
) -> None:
    registry.account = Account()
    registry._challenge = lambda _: web.Response(  # type: ignore[method-assign,assignment]
        status=401, headers={"WWW-Authenticate": challenge} if challenge else {}
    )
    error = await refused(big(registry), tmp_path, settings, FastpullError)
    assert error.exit_code in (11, 12)


@pytest.mark.case("auth", "a realm over http for a registry over https")
def test_token_server_must_be_as_secure_as_registry() -> None:
    challenge = Challenge("bearer", {"realm": "http://user:pw@auth.example/token"})
    with pytest.raises(UnexpectedAnswer, match="less secure"):
        realm_of(challenge, URL("https://registry.example"))
    assert str(realm_of(challenge, URL("http://127.0.0.1:5000"))) == "http://auth.example/token"


# --- transport


async def test_plain_http_needs_loopback_or_setting(settings: Settings) -> None:
    async with fastpull.Client(settings) as client:
        schemes = {
            name: client._session.registries.client(fastpull.Reference.parse(name))._schemes
            for name in (
                "localhost:5000/a",
                "127.0.0.1:5000/a",
                "[::1]:5000/a",
                "registry.example/a",
                "10.0.0.1:5000/a",
            )
        }
    assert [len(one) for one in schemes.values()] == [2, 2, 2, 1, 1]
    assert all(one[0] == "https" for one in schemes.values())
    async with fastpull.Client(replace(settings, insecure=True)) as client:
        assert client._session.registries.client(fastpull.Reference.parse("registry.example/a"))._schemes == (
            "https",
            "http",
        )


@pytest.mark.case("http", "proxies from the environment")
async def test_proxy_from_environment_is_used(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registry acts as the proxy: requests have absolute URLs."""
    monkeypatch.setenv("http_proxy", f"http://{registry.address}")
    reference = big(registry).replace(registry.address, "registry.test:80")
    async with fastpull.Client(replace(settings, insecure=True)) as client:
        client._session.registries.client(fastpull.Reference.parse(reference))._base = URL("http://registry.test:80")
        await client.pull(reference, tmp_path / "out")
    assert (tmp_path / "out/f").read_bytes() == CONTENT


@pytest.mark.case("http", "keep-alive")
async def test_connections_are_reused(registry: FaultyRegistry, settings: Settings) -> None:
    ports = set()

    async def note(_: FaultyRegistry, request: web.Request, __: str) -> None:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername"))

    registry.faults.append(note)
    reference = publish(registry, *[[file(f"f{n}", os.urandom(100))] for n in range(60)])
    async with fastpull.Client(replace(settings, connections=2)) as client:
        await client.warm([reference])
    assert len(ports) <= 4


async def test_host_with_high_latency_gets_more_initial_connections(
    registry: FaultyRegistry, settings: Settings
) -> None:
    registry.faults.append(together(16))
    reference = publish(registry, *[[file(f"f{n}", os.urandom(100))] for n in range(20)])
    near = reference.removeprefix("docker://").partition("/")[0]
    host, _, port = near.partition(":")
    proxy = await serve((host, int(port)), 0.1, 1e9)
    async with proxy, fastpull.Client(replace(settings, connections=16)) as client:
        (report,) = await client.warm([reference.replace(near, "{}:{}".format(*proxy.sockets[0].getsockname()[:2]))])
    assert report.error is None


async def test_layers_are_requested_concurrently(registry: FaultyRegistry, settings: Settings) -> None:
    registry.faults.append(together(4))
    reference = publish(registry, *[[file(f"f{n}", os.urandom(100))] for n in range(4)])
    async with fastpull.Client(settings) as client:
        (report,) = await client.warm([reference])
    assert report.error is None


@pytest.mark.case("http", "IPv6")
async def test_registry_with_ipv6_address(settings: Settings, tmp_path: Path) -> None:
    registry = FaultyRegistry()
    publish(registry, [file("a")])
    runner = web.AppRunner(web.Application(middlewares=[]), access_log=None, shutdown_timeout=0.5)
    runner.app.router.add_route("*", "/{path:.*}", registry.handle)
    await runner.setup()
    try:
        await web.TCPSite(runner, "::1", 0).start()
        registry.address = f"[::1]:{runner.addresses[0][1]}"
        async with fastpull.Client(settings) as client:
            await client.pull(f"{registry.address}/test/image:v1", tmp_path / "out")
            with pytest.raises(NotFound) as caught:
                await client.resolve(f"{registry.address}/test/none:v1")
    finally:
        await runner.cleanup()
    assert (tmp_path / "out/a").exists()
    assert registry.address in str(caught.value)


@pytest.mark.case("http", "a connection limit for all clients of a cache")
async def test_site_connection_limit_applies_to_all_clients_of_a_cache(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    most = 0

    async def watch(running: FaultyRegistry, _: web.Request, __: str) -> None:
        nonlocal most
        most = max(most, running.active)
        await asyncio.sleep(0.02)

    registry.faults.append(watch)
    references = [
        publish(registry, *[[file(f"f{n}", os.urandom(100))] for n in range(9)], name=f"test/{who}") for who in "ab"
    ]
    clients = [fastpull.Client(replace(settings, site_connections=2)) for _ in references]
    async with clients[0], clients[1]:
        await asyncio.gather(*(one.warm([reference]) for one, reference in zip(clients, references, strict=True)))
    assert most == 2


@pytest.mark.case("http", "a low RateLimit-Remaining")
async def test_low_rate_limit_warns_once(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    original = registry.serve_manifest

    async def counting(request: web.Request, name: str, version: str) -> web.StreamResponse:
        answer = await original(request, name, version)
        answer.headers["ratelimit-limit"] = "100;w=21600"
        answer.headers["ratelimit-remaining"] = "3;w=21600"
        return answer

    registry.serve_manifest = counting  # type: ignore[method-assign]
    events: list[Event] = []
    reference = publish(registry, [file("a")])
    async with fastpull.Client(settings, on_event=events.append) as client:
        await client.resolve(reference)
        await client.resolve(reference)
    (warning,) = [event for event in events if isinstance(event, Warned)]
    assert "3 of 100 requests in 6 h are left" in warning.message
    assert registry.address in warning.message


@pytest.mark.case("http", "a refusing proxy")
@pytest.mark.parametrize("status_code", [407, 403])
async def test_refusing_proxy_error_omits_password(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, status_code: int
) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status_code} No\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("https_proxy", f"http://user:hunter2@127.0.0.1:{port}")
        async with fastpull.Client(settings) as client:
            with pytest.raises(TransportError, match=f"proxy refuses .HTTP {status_code}.*https_proxy") as caught:
                await client.resolve("registry.test/a/b:v1")
    assert "hunter2" not in str(caught.value) + repr(caught.value)


@pytest.mark.case("http", "an unreachable proxy")
async def test_unreachable_proxy_is_an_error(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:hunter2@127.0.0.1:9")
    async with fastpull.Client(settings) as client:
        with pytest.raises(TransportError, match="cannot reach the proxy.*https_proxy") as caught:
            await client.resolve("registry.test/a/b:v1")
    assert "hunter2" not in str(caught.value) + repr(caught.value)


@pytest.mark.case("http", "a host that changes range support and content")
async def test_consumed_bytes_are_not_overwritten_by_changed_content(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    """Send a valid range, then whole blobs, then everything as one range with other bytes."""

    async def fault(running: FaultyRegistry, request: web.Request, digest: str) -> web.StreamResponse:
        body = bytearray(running.blobs[digest])
        whole = f"0-{len(body) - 1}"
        if request.headers["Range"] != f"bytes={whole}":
            return web.Response(body=bytes(body))
        body[100] ^= 1
        headers = {"Content-Range": f"bytes {whole}/{len(body)}"}
        return web.Response(status=206, body=bytes(body), headers=headers)

    reference = publish(registry, stored([file("f", CONTENT)], bytes))
    registry.faults.append(from_request(1, fault))
    await pull(reference, tmp_path, settings)
    assert not fastpull.cache.CacheManager(settings.cache).verify().corrupt
