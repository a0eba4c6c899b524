"""The resolution of tags: resolved once, pinned and cached, according to `--pull`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

import fastpull
from fastpull.cache import checksummed_json
from fastpull.cache.refs import Ref, read_refs
from fastpull.cache.store import Store
from fastpull.cli import main
from fastpull.config.settings import Settings
from fastpull.errors import (
    AccessDenied,
    FastpullError,
    MalformedDocument,
    NotFound,
    RateLimited,
    TransportError,
    UnexpectedAnswer,
)
from fastpull.oci import media_types
from fastpull.oci.digest import Digest
from fastpull.registry.http.retry import Backoff
from fastpull.telemetry.events import Event, Warned
from tests.support.layers import file, publish
from tests.support.registry import Account, FaultyRegistry


def asked(registry: FaultyRegistry) -> list[str]:
    """Return the requests since the last call, without the repository."""
    found = [f"{one.method} {one.path.removeprefix('/v2/test/image/')}" for one in registry.requests]
    registry.requests.clear()
    return found


async def pull(
    reference: str, settings: Settings, output: Path, policy: str = "always", events: list[Event] | None = None
) -> fastpull.PullReport:
    on_event = events.append if events is not None else lambda _: None
    async with fastpull.Client(replace(settings, pull=policy), on_event=on_event) as client:
        return await client.pull(reference, output)


def content(output: Path) -> str:
    return (output / "a").read_text()


@pytest.fixture
def reference(registry: FaultyRegistry) -> str:
    return publish(registry, [file("a", b"1")])


def add_index(registry: FaultyRegistry) -> None:
    """Publish an index that names the image."""
    media_type, body = registry.manifests["test/image", "v1"]
    entry = {**registry.add_blob(body, media_type), "platform": {"os": "linux", "architecture": "amd64"}}
    registry.add_manifest(
        "test/image", "v1", {"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": [entry]}
    )


# --- requests


@pytest.mark.parametrize("is_index", [False, True], ids=["manifest", "index"])
async def test_current_tag_takes_one_request(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, reference: str, is_index: bool
) -> None:
    if is_index:
        add_index(registry)
    await pull(reference, settings, tmp_path / "one")
    asked(registry)
    await pull(reference, settings, tmp_path / "two")
    assert asked(registry) == ["HEAD manifests/v1"]
    assert content(tmp_path / "two") == "1"


async def test_token_adds_challenge_and_token_request(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, reference: str
) -> None:
    registry.account = Account()
    await pull(reference, settings, tmp_path / "one")
    asked(registry)
    await pull(reference, settings, tmp_path / "two")
    assert asked(registry) == ["HEAD manifests/v1", "GET /token", "HEAD manifests/v1"]


async def test_moved_tag_is_fetched_by_its_digest(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, reference: str
) -> None:
    await pull(reference, settings, tmp_path / "one")
    publish(registry, [file("a", b"2")])
    digest = Digest.of(registry.manifests["test/image", "v1"][1])
    asked(registry)
    await pull(reference, settings, tmp_path / "two")
    requests = asked(registry)
    assert requests[:2] == ["HEAD manifests/v1", f"GET manifests/{digest}"]
    assert not [one for one in requests[2:] if "manifests" in one]
    assert content(tmp_path / "two") == "2"
    publish(registry, [file("a", b"1")])
    await pull(reference, settings, tmp_path / "three")
    assert asked(registry) == ["HEAD manifests/v1"], "the earlier content of the cache was fetched again"


async def test_tag_that_moves_during_pull_has_no_effect(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, reference: str
) -> None:
    async with fastpull.Client(settings) as client:
        image = await client.resolve(reference)
        publish(registry, [file("a", b"2")])
        asked(registry)
        report = await client.pull(image, tmp_path / "out")
    assert report.image.digest == image.digest
    assert content(tmp_path / "out") == "1"
    assert not [one for one in asked(registry) if "manifests" in one]


@pytest.mark.parametrize("is_warm", [False, True], ids=["cold", "warm"])
async def test_resolving_sixty_layers_requests_none_of_them(
    registry: FaultyRegistry, settings: Settings, is_warm: bool
) -> None:
    reference = publish(registry, *([file(f"f{number}", b"x")] for number in range(60)))
    add_index(registry)
    async with fastpull.Client(settings) as client:
        if is_warm:
            await client.resolve(reference)
        asked(registry)
        image = await client.resolve(reference)
    assert len(image.layers) == 60
    assert len(asked(registry)) == (1 if is_warm else 3)  # HEAD; or index, manifest and config


def head(status: int = 200, digest: str | None = None) -> Callable[[FaultyRegistry], None]:
    """Replace the registry's response to HEAD."""

    def change(registry: FaultyRegistry) -> None:
        serve = registry.serve_manifest

        async def answer(request: web.Request, name: str, version: str) -> web.StreamResponse:
            if request.method == "HEAD":
                return web.Response(status=status, headers={"Docker-Content-Digest": digest} if digest else {})
            return await serve(request, name, version)

        registry.serve_manifest = answer  # type: ignore[method-assign]

    return change


@pytest.mark.parametrize(
    "change",
    [
        head(405),
        head(501),
        head(400),
        head(404),
        head(406),
        head(200),
        head(200, "sha256:short"),
        head(200, "md5:" + "0" * 32),
    ],
    ids=["405", "501", "400", "404", "406", "no-digest", "short-digest", "other-digest"],
)
async def test_registry_without_head_gets_manifest_request(
    registry: FaultyRegistry,
    settings: Settings,
    tmp_path: Path,
    reference: str,
    change: Callable[[FaultyRegistry], None],
) -> None:
    await pull(reference, settings, tmp_path / "one")
    change(registry)
    publish(registry, [file("a", b"2")])
    asked(registry)
    await pull(reference, settings, tmp_path / "two")
    assert asked(registry)[:2] == ["HEAD manifests/v1", "GET manifests/v1"]
    assert content(tmp_path / "two") == "2"


async def test_wrong_digest_of_head_is_detected(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, reference: str
) -> None:
    await pull(reference, settings, tmp_path / "one")
    head(200, f"sha256:{'0' * 64}")(registry)
    with pytest.raises(NotFound):
        await pull(reference, settings, tmp_path / "two")


# --- policies

GONE = "127.0.0.1:1"


@pytest.fixture
async def offline(registry: FaultyRegistry, settings: Settings, tmp_path: Path, reference: str) -> str:
    """Return a cached reference of an unreachable registry."""
    name = reference.removeprefix(registry.address)
    await pull(reference, settings, tmp_path / "first")
    store = Store(settings.cache)
    for ref in read_refs(store.files):
        replace(ref, reference=f"{GONE}{name}").save(store.files)
    return f"{GONE}{name}"


@pytest.mark.parametrize(
    ("policy", "known", "requests"),
    [
        ("always", False, 3),
        ("always", True, 1),
        ("newer", False, 3),
        ("newer", True, 1),
        ("missing", False, 3),
        ("missing", True, 0),
        ("never", True, 0),
    ],
)
async def test_requests_of_each_pull_policy(
    registry: FaultyRegistry,
    settings: Settings,
    tmp_path: Path,
    reference: str,
    policy: str,
    known: bool,
    requests: int,
) -> None:
    if known:
        await pull(reference, settings, tmp_path / "first")
    asked(registry)
    await pull(reference, settings, tmp_path / "out", policy)
    assert len(asked(registry)) == requests
    assert content(tmp_path / "out") == "1"


@pytest.mark.parametrize(("policy", "expected"), [("always", "2"), ("newer", "2"), ("missing", "1"), ("never", "1")])
async def test_result_of_each_pull_policy_for_moved_tag(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, reference: str, policy: str, expected: str
) -> None:
    await pull(reference, settings, tmp_path / "first")
    publish(registry, [file("a", b"2")])
    await pull(reference, settings, tmp_path / "out", policy)
    assert content(tmp_path / "out") == expected


@pytest.mark.parametrize(("policy", "works"), [("always", False), ("newer", True), ("missing", True), ("never", True)])
async def test_result_of_each_pull_policy_without_network(
    offline: str, settings: Settings, tmp_path: Path, policy: str, works: bool
) -> None:
    events: list[Event] = []
    if works:
        await pull(offline, settings, tmp_path / "out", policy, events)
        assert content(tmp_path / "out") == "1"
    else:
        with pytest.raises(TransportError):
            await pull(offline, settings, tmp_path / "out", policy, events)
        assert not (tmp_path / "out").exists()
    warnings = [event.message for event in events if isinstance(event, Warned)]
    expected = {"always": "--pull newer or --pull missing uses it", "newer": f"cannot reach {GONE}"}.get(policy)
    assert len(warnings) == bool(expected)
    assert not expected or expected in warnings[0]


@pytest.mark.parametrize(
    ("status", "kind"), [(404, NotFound), (403, AccessDenied), (429, RateLimited), (500, UnexpectedAnswer)]
)
async def test_newer_falls_back_to_cache_on_any_registry_error(
    registry: FaultyRegistry,
    settings: Settings,
    tmp_path: Path,
    reference: str,
    status: int,
    kind: type[FastpullError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastpull.registry.client.RegistryClient.backoff", Backoff(attempts=1))
    await pull(reference, settings, tmp_path / "first")
    head(status)(registry)
    if status != 403:
        for version in ("v1", str(Digest.of(registry.manifests["test/image", "v1"][1]))):
            del registry.manifests["test/image", version]
    with pytest.raises(kind):
        await pull(reference, settings, tmp_path / "refused")
    await pull(reference, settings, tmp_path / "out", "newer")
    assert content(tmp_path / "out") == "1"


@pytest.mark.parametrize("what", ["nothing", "manifest", "config", "layer", "ref"])
async def test_never_names_missing_content_without_request(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, reference: str, what: str
) -> None:
    if what != "nothing":
        image = (await pull(reference, settings, tmp_path / "first")).image
        store = Store(settings.cache)
        if what == "ref":
            for ref in list(read_refs(store.files)):
                ref.remove(store.files)
        else:
            config, layer = image.manifest.config.digest, image.layers[0].blob.digest
            store.remove({"manifest": image.digest, "config": config, "layer": layer}[what])
    asked(registry)
    with pytest.raises(NotFound, match="--pull never") as caught:
        await pull(reference, settings, tmp_path / "out", "never")
    assert settings.cache in str(caught.value)
    assert asked(registry) == []
    assert not (tmp_path / "out").exists()
    await pull(reference, settings, tmp_path / "out", "missing")
    assert content(tmp_path / "out") == "1", "the missing image was not fetched"


async def test_never_applies_to_digests(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, reference: str
) -> None:
    digest = Digest.of(registry.manifests["test/image", "v1"][1])
    with pytest.raises(NotFound, match="--pull never"):
        await pull(f"{reference}@{digest}", settings, tmp_path / "out", "never")
    assert asked(registry) == []


async def test_cached_manifest_is_verified(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, reference: str
) -> None:
    image = (await pull(reference, settings, tmp_path / "first")).image
    path = Path(Store(settings.cache).blob_path(image.digest))
    os.chmod(path, 0o600)
    path.write_bytes(path.read_bytes().replace(b'"size": ', b'"size":  '))
    with pytest.raises(NotFound):
        await pull(reference, settings, tmp_path / "never", "never")
    await pull(reference, settings, tmp_path / "out", "missing")
    assert content(tmp_path / "out") == "1"


async def test_reference_is_cached_per_platform(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    reference = publish(registry, [file("a", b"arm")], architecture="arm64")
    offline = replace(settings, pull="never")
    async with fastpull.Client(settings) as client:
        await client.resolve(reference, "linux/arm64/v8")
    async with fastpull.Client(offline) as client:
        assert str((await client.resolve(reference, "linux/arm64")).platform) == "linux/arm64"
        with pytest.raises(NotFound, match="linux/amd64"):
            await client.resolve(reference, "linux/amd64")


async def test_reference_entry_without_top_digest_is_valid(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, reference: str
) -> None:
    await pull(reference, settings, tmp_path / "one")
    store = Store(settings.cache)
    (ref,) = read_refs(store.files)
    content = store.files.read(f"{store.root}/refs/{ref.name}")
    assert content is not None
    value = {name: value for name, value in json.loads(content.splitlines()[0]).items() if name != "top"}
    assert Ref.from_bytes(checksummed_json.to_bytes(value)) == ref


async def test_only_registry_response_updates_reference_time(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, reference: str
) -> None:
    store = Store(settings.cache)
    times: list[float] = []
    for policy in ("always", "missing", "never", "always"):
        await pull(reference, settings, tmp_path / str(len(times)), policy)
        times += [ref.time for ref in read_refs(store.files)]
    assert times[0] == times[1] == times[2] < times[3]


async def test_malformed_manifest_does_not_fall_back_to_cache(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, reference: str
) -> None:
    await pull(reference, settings, tmp_path / "one")
    registry.add_manifest("test/image", "v1", {"schemaVersion": 2, "mediaType": media_types.OCI_MANIFEST})
    with pytest.raises(MalformedDocument):
        await pull(reference, settings, tmp_path / "two", "newer")


# --- the command


async def test_digest_is_printed_and_written(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, reference: str, capfd: pytest.CaptureFixture[str]
) -> None:
    add_index(registry)
    digest = str(json.loads(registry.manifests["test/image", "v1"][1])["manifests"][0]["digest"])
    common = ("--cache", settings.cache)
    assert await asyncio.to_thread(command, "inspect", "--digest", reference, *common) == 0
    assert capfd.readouterr().out == f"{digest}\n"
    pulling = ("pull", "-q", reference, "-o", str(tmp_path / "out"), "--digest-file", str(tmp_path / "digest"), *common)
    assert await asyncio.to_thread(command, *pulling) == 0
    assert (tmp_path / "digest").read_text() == digest, "not the format of podman and skopeo"
    assert await asyncio.to_thread(command, *pulling[:-3], str(tmp_path / "no/digest"), *common, "--force") == 31
    assert f"no such directory, make it first: {tmp_path}/no" in capfd.readouterr().err


def command(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "fastpull", *arguments], check=False).returncode


def test_unknown_pull_policy_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "debian:12", "--pull", "sometimes"]) == 3
    assert "must be one of always, newer, missing, never: 'sometimes'" in capsys.readouterr().err
