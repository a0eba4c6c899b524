"""The main job through its public names: a registry or layout becomes a directory."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from aiohttp import web

import fastpull
from fastpull.cache.blob_metadata import BlobMetadata
from fastpull.cache.store import Store
from fastpull.config.settings import Settings
from fastpull.demo import check_tree, make_image
from fastpull.errors import (
    DecompressError,
    DiffIdMismatch,
    DigestMismatch,
    FastpullError,
    LayerError,
    MalformedDocument,
    NoMatchingPlatform,
    NotFound,
    OutputExists,
    SizeMismatch,
    TarError,
    UnsupportedMediaType,
)
from fastpull.layers.archive import archive
from fastpull.oci import media_types
from fastpull.pipeline.layer import LayerPipeline
from fastpull.telemetry.events import Committing, Event, LayerDone, LayerProgress, Resolved, Warned
from tests.support.layers import StoredLayer, file, folder, hardlink, publish, stored, symlink, whiteout
from tests.support.registry import FaultyRegistry, corrupted, times
from tests.support.trees import names

BIG = os.urandom(3 << 20)


async def pull(
    reference: str, output: Path, settings: Settings, **options: Any
) -> tuple[fastpull.PullReport, list[Event]]:
    events: list[Event] = []
    async with fastpull.Client(settings, on_event=events.append) as client:
        report = await client.pull(reference, fastpull.Directory(output, **options))
    return report, events


async def refused(kind: type[FastpullError], reference: str, tmp_path: Path, settings: Settings) -> FastpullError:
    """Pulls what cannot be pulled, and checks what holds after every error."""
    with pytest.raises(kind) as caught:
        await pull(reference, tmp_path / "out", settings)
    assert type(caught.value) is kind
    assert [name for name in os.listdir(tmp_path) if name != "cache"] == [], "nothing at the destination or beside it"
    assert not fastpull.cache.CacheManager(settings.cache).verify().corrupt
    return caught.value


# --- what becomes of images


@pytest.mark.parametrize("workers", [1, 8])
async def test_demonstration_image_has_expected_tree(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, workers: int
) -> None:
    image = make_image(4)
    registry.add_image("demo", "v1", image.layers, image.diff_ids)
    await pull(f"{registry.address}/demo:v1", tmp_path / "out", replace(settings, workers=workers))
    assert check_tree(str(tmp_path / "out"), image, owners_kept=os.geteuid() == 0) == []


@pytest.mark.parametrize(
    ("compress", "media_type"),
    [
        (None, media_types.OCI_LAYER + "+gzip"),
        (zstandard.ZstdCompressor().compress, media_types.OCI_LAYER + "+zstd"),
        (bytes, media_types.OCI_LAYER),
        (zstandard.ZstdCompressor().compress, media_types.DOCKER_LAYER + ".gzip"),  # a type that lies
        (lambda tar: gzip.compress(tar[:100]) + gzip.compress(tar[100:]), media_types.OCI_LAYER + "+gzip"),
    ],
)
async def test_layers_are_inflated_by_their_bytes(
    registry: FaultyRegistry,
    settings: Settings,
    tmp_path: Path,
    compress: Callable[[bytes], bytes] | None,
    media_type: str,
) -> None:
    reference = publish(registry, stored([file("a", BIG)], compress), layer_type=media_type)
    await pull(reference, tmp_path / "out", settings)
    assert (tmp_path / "out/a").read_bytes() == BIG


async def test_an_image_without_layers_is_an_empty_directory(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    report, _ = await pull(publish(registry), tmp_path / "out", settings)
    assert names(tmp_path / "out") == set()
    assert (report.entries, report.output.inodes) == (0, 1)


async def test_the_same_layer_twice_is_applied_twice_and_fetched_once(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    same = stored([file("a", BIG), file("b", b"b")])
    reference = publish(registry, same, stored([whiteout("a"), file("b", b"changed")]), same)
    report, _ = await pull(reference, tmp_path / "out", settings)
    assert names(tmp_path / "out") == {"a", "b"}
    assert (tmp_path / "out/b").read_bytes() == b"b"
    assert report.cached_layers == 1
    assert sum(registry.sent.values()) < 2 * len(same.blob)


async def test_a_second_pull_fetches_nothing(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    reference = publish(registry, [file("a", BIG), file("gone", BIG[:1000])], [file("b", b"b"), whiteout("gone")])
    await pull(reference, tmp_path / "one", settings)
    registry.sent.clear()
    report, _ = await pull(reference, tmp_path / "two", settings)
    assert sum(registry.sent.values()) == 0
    assert report.cached_layers == 2
    assert names(tmp_path / "one") == names(tmp_path / "two") == {"a", "b"}


async def test_tags_are_resolved_each_time_and_digests_never(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    first = publish(registry, [file("a", b"1")])
    report, _ = await pull(first, tmp_path / "one", settings)
    publish(registry, [file("a", b"2")])
    await pull(first, tmp_path / "two", settings)
    assert (tmp_path / "two/a").read_bytes() == b"2"
    pinned = f"{first}@{report.image.digest}"
    registry.requests.clear()
    await pull(pinned, tmp_path / "three", settings)
    assert (tmp_path / "three/a").read_bytes() == b"1"
    assert registry.requests == [], "the cache has it all"


async def test_index_selects_the_platform(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    entries = []
    for architecture in ("arm64", "amd64"):
        publish(registry, [file(architecture)], tag=architecture, architecture=architecture)
        media_type, body = registry.manifests["test/image", architecture]
        described = registry.add_blob(body, media_type)
        registry.manifests["test/image", described["digest"]] = (media_type, body)
        entries.append({**described, "platform": {"os": "linux", "architecture": architecture}})
    attestation = {**entries[0], "platform": {"os": "unknown", "architecture": "unknown"}}
    inner = {"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": [attestation, *entries]}
    registry.add_manifest("test/image", "multi", inner)
    media_type, body = registry.manifests["test/image", "multi"]
    nested = registry.add_blob(body, media_type)
    registry.add_manifest("test/image", "outer", {**inner, "manifests": [nested]})
    for tag in ("multi", "outer"):
        for architecture in ("amd64", "arm64"):
            async with fastpull.Client(settings) as client:
                out = tmp_path / f"{tag}-{architecture}"
                await client.pull(f"{registry.address}/test/image:{tag}", out, platform=f"linux/{architecture}")
            assert names(out) == {architecture}
    error = await refused_platform(f"{registry.address}/test/image:outer", settings)
    assert error.available == ("linux/arm64", "linux/amd64")


async def refused_platform(reference: str, settings: Settings) -> NoMatchingPlatform:
    async with fastpull.Client(settings) as client:
        with pytest.raises(NoMatchingPlatform) as caught:
            await client.resolve(reference, "linux/s390x")
    return caught.value


async def test_nesting_of_indexes_is_limited(registry: FaultyRegistry, settings: Settings) -> None:
    publish(registry, [file("a")], tag="t0")
    for depth in range(6):
        media_type, body = registry.manifests["test/image", f"t{depth}"]
        entry = registry.add_blob(body, media_type)
        registry.add_manifest(
            "test/image",
            f"t{depth + 1}",
            {"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": [entry]},
        )
    async with fastpull.Client(settings) as client:
        await client.resolve(f"{registry.address}/test/image:t4")
        with pytest.raises(MalformedDocument, match="more than 4 nested indexes"):
            await client.resolve(f"{registry.address}/test/image:t6")


async def test_sha512_digests_are_supported(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    import hashlib  # noqa: PLC0415

    tar = archive([file("a", b"content")])
    blob = gzip.compress(tar)
    reference = publish(registry, StoredLayer(blob, "sha512:" + hashlib.sha512(tar).hexdigest()))
    manifest = json.loads(registry.manifests["test/image", "v1"][1])
    manifest["layers"][0]["digest"] = digest = "sha512:" + hashlib.sha512(blob).hexdigest()
    registry.blobs[digest] = blob
    registry.add_manifest("test/image", "v1", manifest)
    await pull(reference, tmp_path / "out", settings)
    assert (tmp_path / "out/a").read_bytes() == b"content"
    assert Store(settings.cache).find(fastpull.Digest.parse(digest)) is not None


async def test_many_layers_need_few_connections(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    layers = [[file(f"f{number}", os.urandom(2000)), file("last", b"%d" % number)] for number in range(70)]
    report, _ = await pull(publish(registry, *layers), tmp_path / "out", replace(settings, connections=1, workers=3))
    assert (tmp_path / "out/last").read_bytes() == b"69"
    assert len(names(tmp_path / "out")) == 71
    assert report.output.inodes == 72


@pytest.mark.parametrize("kind", ["unpack", "verify"])
async def test_largest_layer_starts_first(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = publish(registry, *([file(f"f{size}", os.urandom(size))] for size in (2000, 90_000, 40_000, 10)))
    find, work_on, sizes = Store.find, getattr(LayerPipeline, kind), []

    def begun(work: LayerPipeline, *arguments: Any) -> Any:
        sizes.append(work.layer.blob.size)
        return work_on(work, *arguments)

    def slowly(store: Store, digest: fastpull.Digest, *, touch: bool = True) -> Any:
        time.sleep(len(registry.blobs.get(str(digest), b"")) / 1e6)
        return find(store, digest, touch=touch)

    monkeypatch.setattr(Store, "find", slowly)
    monkeypatch.setattr(LayerPipeline, kind, begun)
    async with fastpull.Client(replace(settings, workers=1)) as client:
        if kind == "unpack":
            await client.pull(reference, fastpull.Directory(tmp_path / "out"))
        else:
            assert (await client.warm([reference]))[0].error is None
    assert len(sizes) == 4
    assert sizes == sorted(sizes, reverse=True)


async def test_minimum_memory_suffices(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    layers = [[file(f"f{number}", os.urandom(1 << 20))] for number in range(12)]
    await pull(publish(registry, *layers), tmp_path / "out", replace(settings, memory=16 << 20, workers=8))
    assert len(names(tmp_path / "out")) == 12


async def test_client_pulls_concurrently(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    references = [publish(registry, [file("base", BIG)], [file(f"f{n}", b"x")], name=f"image/n{n}") for n in range(5)]
    async with fastpull.Client(settings) as client:
        await asyncio.gather(*(client.pull(one, tmp_path / f"out{n}") for n, one in enumerate(references)))
    for number in range(5):
        assert names(tmp_path / f"out{number}") == {"base", f"f{number}"}
    assert max(registry.sent.values()) <= 1.1 * len(BIG), "the shared layer came once"


async def test_sync_reaches_cache_and_output(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    await pull(publish(registry, [file("a", BIG)]), tmp_path / "out", replace(settings, sync=True))
    store = Store(settings.cache)
    for blob in store.blobs():
        found = store.find(blob.digest)
        assert found is not None
        assert found.metadata is not None
        assert found.metadata.synced
        found.close()


def test_scripts_need_no_event_loop(tmp_path: Path, settings: Settings) -> None:
    from fastpull.demo import LoopbackRegistry  # noqa: PLC0415

    started: dict[str, Any] = {}

    async def serve() -> None:
        async with LoopbackRegistry() as registry:
            started["reference"] = publish(registry, [file("a", b"x")])
            started["loop"], started["stop"] = asyncio.get_running_loop(), asyncio.Event()
            ready.set()
            await started["stop"].wait()

    import threading  # noqa: PLC0415

    ready = threading.Event()
    server = threading.Thread(target=lambda: asyncio.run(serve()))
    server.start()
    ready.wait(10)
    report = fastpull.pull(started["reference"], str(tmp_path / "out"), settings=settings)
    started["loop"].call_soon_threadsafe(started["stop"].set)
    server.join()
    assert report.output.inodes == 2
    assert names(tmp_path / "out") == {"a"}


# --- layouts


def layout(path: Path, registry: FaultyRegistry, tags: dict[str, str]) -> None:
    """Writes what a registry has as an OCI layout; ``tags`` from layout to registry."""
    (path / "blobs/sha256").mkdir(parents=True)
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    entries = []
    for tag, theirs in tags.items():
        media_type, body = registry.manifests["test/image", theirs]
        entry = registry.add_blob(body, media_type)
        entries.append({**entry, **({"annotations": {"org.opencontainers.image.ref.name": tag}} if tag else {})})
    for digest, content in registry.blobs.items():
        (path / "blobs/sha256" / digest.removeprefix("sha256:")).write_bytes(content)
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))


async def test_a_layout_is_a_source(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    publish(registry, [file("a", BIG)])
    publish(registry, [file("b")], tag="v2")
    layout(tmp_path / "layout", registry, {"v1": "v1", "v2": "v2"})
    source = f"oci:{tmp_path}/layout"
    for name, expected in (("v1", {"a"}), ("v2", {"b"})):
        report, _ = await pull(f"{source}:{name}", tmp_path / name, settings)
        assert names(tmp_path / name) == expected
        await pull(f"{source}@{report.image.digest}", tmp_path / f"{name}-by-digest", settings)
        assert names(tmp_path / f"{name}-by-digest") == expected
    assert fastpull.cache.CacheManager(settings.cache).usage().blobs == 0, "a layout is not copied into the cache"
    async with fastpull.Client(settings) as client:
        with pytest.raises(NotFound, match="It has v1, v2"):
            await client.resolve(f"{source}:v3")
        with pytest.raises(FastpullError, match="choose one of v1, v2"):
            await client.resolve(source)


async def test_layout_with_one_untagged_image_needs_no_tag(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    publish(registry, [file("a")])
    layout(tmp_path / "layout", registry, {"": "v1"})
    await pull(f"oci:{tmp_path}/layout", tmp_path / "out", settings)
    assert names(tmp_path / "out") == {"a"}


@pytest.mark.parametrize(
    "damage", ["blob-link", "folder-link", "fifo", "size", "content", "missing", "version", "index"]
)
async def test_a_hostile_layout_is_refused(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, damage: str
) -> None:
    reference = publish(registry, [file("a", b"x" * 100)])
    assert reference
    where = tmp_path / "cache" / "layout"  # beside nothing that `refused` looks at
    layout(where, registry, {"v1": "v1"})
    digest = json.loads(registry.manifests["test/image", "v1"][1])["layers"][0]["digest"].removeprefix("sha256:")
    blob = where / "blobs/sha256" / digest
    secret = tmp_path / "cache" / "secret"
    secret.write_bytes(blob.read_bytes())
    if damage == "blob-link":
        blob.unlink()
        blob.symlink_to(secret)
    elif damage == "folder-link":
        (where / "blobs").rename(tmp_path / "cache" / "elsewhere")
        (where / "blobs").symlink_to(tmp_path / "cache" / "elsewhere")
    elif damage == "fifo":
        blob.unlink()
        os.mkfifo(blob)
    elif damage == "size":
        blob.write_bytes(blob.read_bytes() + b"x")
    elif damage == "content":
        blob.write_bytes(blob.read_bytes()[:-1] + b"x")
    elif damage == "missing":
        blob.unlink()
    elif damage == "version":
        (where / "oci-layout").write_text('{"imageLayoutVersion": "2.0.0"}')
    else:
        (where / "index.json").write_text("{")
    kinds = {"size": SizeMismatch, "content": DigestMismatch, "missing": NotFound}
    await refused(kinds.get(damage, MalformedDocument), f"oci:{where}:v1", tmp_path, settings)


# --- warming


async def test_warming_fills_the_cache_and_nothing_else(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    references = [publish(registry, [file(f"f{n}", os.urandom(9000))], name=f"image/n{n}") for n in range(6)]
    async with fastpull.Client(settings) as client:
        reports = await client.warm([*references, f"{registry.address}/none:v1", "BAD"], jobs=3)
    assert [report.error is None for report in reports] == [True] * 6 + [False] * 2
    assert [type(report.error).__name__ for report in reports[6:]] == ["NotFound", "InvalidReference"]
    registry.sent.clear()
    async with fastpull.Client(settings) as client:
        await client.warm(references)
        await client.pull(references[0], tmp_path / "out")
    assert sum(registry.sent.values()) == 0


async def test_warming_verifies_blobs_of_an_earlier_boot(registry: FaultyRegistry, settings: Settings) -> None:
    content = stored([file("a", BIG)])
    reference = publish(registry, content)
    async with fastpull.Client(settings) as client:
        await client.warm([reference])
    digest = fastpull.Digest.of(content.blob)
    path = Store(settings.cache).blob_path(digest)
    damaged = bytearray(content.blob)
    damaged[1000] ^= 1
    os.chmod(path, 0o600)
    Path(path).write_bytes(damaged)
    os.chmod(path + ".seal", 0o600)
    Path(path + ".seal").write_bytes(BlobMetadata(len(damaged), "0" * 16, False, "another boot").to_bytes())
    async with fastpull.Client(settings) as client:
        (report,) = await client.warm([reference])
    assert report.error is None
    assert Path(path).read_bytes() == content.blob


# --- events


async def test_events_come_in_order(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    reference = publish(registry, [file("a", BIG)], [file("b")])
    report, events = await pull(reference, tmp_path / "out", settings)
    assert isinstance(events[0], Resolved)
    assert events[0].image == report.image
    assert isinstance(events[-1], Committing)
    assert events[-1].entries == 2
    done = [event for event in events if isinstance(event, LayerDone)]
    assert sorted(event.size for event in done) == sorted(layer.blob.size for layer in report.image.layers)
    for event in done:
        progress = [one for one in events if isinstance(one, LayerProgress) and one.digest == event.digest]
        assert [one.read for one in progress] == sorted(one.read for one in progress)
        assert (progress[-1].read, progress[-1].unpacked) == (event.size, event.unpacked)


async def test_warnings_name_repeated_paths(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    odd = [file("twice", b"1"), file("twice", b"2"), file("x", xattrs=((b"trusted.overlay.opaque", b"y"),))]
    _, events = await pull(publish(registry, odd), tmp_path / "out", settings)
    messages = [event.message for event in events if isinstance(event, Warned)]
    assert any("1 paths stand in one layer more than once, such as 'twice'" in message for message in messages)
    assert any("1 xattrs left out" in message for message in messages)


# --- what is wrong with images


async def test_blob_with_wrong_digest_is_refused(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    reference = publish(registry, [file("good", BIG)], [file("bad", BIG)])
    registry.faults.append(corrupted(1000))
    error = await refused(DigestMismatch, reference, tmp_path, settings)
    assert reference in str(error)
    registry.faults.clear()
    await pull(reference, tmp_path / "out", settings)  # nothing wrong was kept
    assert names(tmp_path / "out") == {"good", "bad"}


@pytest.mark.parametrize("at", [0, 1000], ids=["the first byte", "a byte in the midst"])
async def test_blob_damaged_in_transfer_is_fetched_once_more(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, at: int
) -> None:
    layers = [stored([file("one", BIG)]), stored([file("two", BIG)])]
    reference = publish(registry, *layers)
    registry.faults.append(times(1, corrupted(at)))
    _, events = await pull(reference, tmp_path / "out", settings)
    assert (tmp_path / "out/one").read_bytes() == (tmp_path / "out/two").read_bytes() == BIG
    assert sorted(registry.sent[str(fastpull.Digest.of(layer.blob))] / len(layer.blob) for layer in layers) == [1, 2]
    assert ["a damaged blob was thrown away" in event.message for event in events if isinstance(event, Warned)] == [
        True
    ]


async def test_always_damaged_blob_is_fetched_twice_only(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    layer = stored([file("a", BIG)])
    reference = publish(registry, layer)
    registry.faults.append(corrupted(1000))
    await refused(DigestMismatch, reference, tmp_path, settings)
    assert registry.sent[str(fastpull.Digest.of(layer.blob))] == 2 * len(layer.blob)


@pytest.mark.parametrize(("spoiled", "succeeds"), [(1, True), (2, False)])
async def test_config_damaged_in_transfer_is_fetched_once_more(
    registry: FaultyRegistry,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoiled: int,
    succeeds: bool,
) -> None:
    reference, left, serve = publish(registry, [file("a")]), spoiled, registry.serve_blob

    async def spoil(request: web.Request, name: str, digest: str) -> web.StreamResponse:
        nonlocal left
        if "Range" in request.headers or left == 0:
            return await serve(request, name, digest)
        left -= 1
        return web.Response(body=registry.blobs[digest].replace(b"linux", b"Linux"))

    monkeypatch.setattr(registry, "serve_blob", spoil)
    if succeeds:
        await pull(reference, tmp_path / "out", settings)
        assert names(tmp_path / "out") == {"a"}
    else:
        await refused(DigestMismatch, reference, tmp_path, settings)


async def test_digest_mismatch_takes_precedence_over_its_consequences(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, [file("a", BIG)])
    registry.faults.append(corrupted(0))  # no gzip any more
    await refused(DigestMismatch, reference, tmp_path, settings)


@pytest.mark.parametrize("compress", [None, bytes], ids=["gzip", "plain"])
async def test_wrong_diff_id_is_refused(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, compress: Callable[[bytes], bytes] | None
) -> None:
    layer = stored([file("a", BIG)], compress)
    reference = publish(registry, StoredLayer(layer.blob, "sha256:" + "0" * 64))
    error = await refused(DiffIdMismatch, reference, tmp_path, settings)
    assert layer.diff_id in str(error)


async def test_the_diff_id_of_a_plain_layer_may_be_of_another_algorithm(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    layer = stored([file("a", BIG)], bytes)
    tar = hashlib.sha512(layer.blob).hexdigest()
    wrong = publish(registry, StoredLayer(layer.blob, "sha512:" + "0" * 128))
    error = await refused(DiffIdMismatch, wrong, tmp_path, settings)
    assert tar in str(error)
    await pull(publish(registry, StoredLayer(layer.blob, f"sha512:{tar}")), tmp_path / "out", settings)


@pytest.mark.parametrize("change", [-1, 1, 1 << 40])
async def test_wrong_size_is_refused(registry: FaultyRegistry, settings: Settings, tmp_path: Path, change: int) -> None:
    reference = publish(registry, [file("a", BIG)])
    manifest = json.loads(registry.manifests["test/image", "v1"][1])
    manifest["layers"][0]["size"] += change
    registry.add_manifest("test/image", "v1", manifest)
    with pytest.raises(FastpullError) as caught:
        await pull(reference, tmp_path / "out", settings)
    assert caught.value.exit_code in (20, 30), "a mismatch; or no room for what was announced"
    assert os.listdir(tmp_path) == ["cache"]


@pytest.mark.parametrize(
    ("blob", "kind"),
    [
        (b"this is no tar and no archive of any kind" * 100, TarError),
        (gzip.compress(b"no tar" * 200), TarError),
        (gzip.compress(archive([file("a", b"x" * 5000)])[:3000]), TarError),
        (gzip.compress(archive([file("a", b"x" * 5000)]))[:-10], DecompressError),
        (gzip.compress(archive([file("a", b"x" * 5000)])) + b"trailing", DecompressError),
        (b"BZh91AY&SY" + bytes(100), UnsupportedMediaType),
        (gzip.compress(archive([file("../escape", b"x")])), LayerError),
        (gzip.compress(archive([hardlink("a", "nothing")])), LayerError),
        (gzip.compress(archive([file("a"), file("a/b")])), LayerError),
    ],
    ids=[
        "no-format", "no-tar", "short-tar", "short-gzip", "trailing-bytes", "bzip2", "escaping-path", "link-to-nothing",
        "file-as-folder",
    ],
)  # fmt: skip
async def test_invalid_layer_is_refused(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, blob: bytes, kind: type[FastpullError]
) -> None:
    import hashlib  # noqa: PLC0415
    import zlib  # noqa: PLC0415

    try:
        tar = gzip.decompress(blob)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        tar = blob
    layer = StoredLayer(blob, "sha256:" + hashlib.sha256(tar).hexdigest())
    reference = publish(registry, stored([file("base", BIG)]), layer)
    error = await refused(kind, reference, tmp_path, settings)
    assert str(fastpull.Digest.of(blob)) in str(error), "the layer is named"


async def test_an_escaping_layer_touches_nothing_outside(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim/file").write_text("mine")
    layers = [
        [symlink("link", str(tmp_path / "victim")), symlink("up", "../../victim"), symlink("abs", "/")],
        [file("link/file", b"theirs"), file("up/file", b"theirs"), file(f"abs{tmp_path}/victim/file", b"theirs")],
    ]
    await pull(publish(registry, *layers), tmp_path / "out", settings)
    assert (tmp_path / "victim/file").read_text() == "mine"
    assert (tmp_path / f"out{tmp_path}/victim/file").read_bytes() == b"theirs"


async def test_artifact_that_is_no_image_is_refused(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    chart = {
        "schemaVersion": 2,
        "mediaType": media_types.OCI_MANIFEST,
        "config": registry.add_blob(b"{}", "application/vnd.cncf.helm.config.v1+json"),
        "layers": [],
    }
    registry.add_manifest("chart", "v1", chart)
    error = await refused(UnsupportedMediaType, f"{registry.address}/chart:v1", tmp_path, settings)
    assert "helm" in str(error)


async def test_a_config_for_another_platform_is_refused(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, [file("a")], architecture="s390x")
    error = await refused(NoMatchingPlatform, reference, tmp_path, settings)
    assert "linux/s390x" in str(error)


async def test_different_numbers_of_layers_and_diff_ids_are_refused(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    layer = stored([file("a")])
    registry.add_image("test/image", "v1", [layer.blob, layer.blob], [layer.diff_id])
    error = await refused(MalformedDocument, f"{registry.address}/test/image:v1", tmp_path, settings)
    assert "2 layers, but 1 diff_ids" in str(error)


async def test_a_used_destination_is_refused_before_anything_is_fetched(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, [folder("d")])
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("mine")
    with pytest.raises(OutputExists):
        await pull(reference, tmp_path / "out", settings)
    assert registry.requests == []
    await pull(reference, tmp_path / "out", settings, force=True, replace_foreign=True)
    assert names(tmp_path / "out") == {"d"}


# --- a cache that rots


@pytest.mark.parametrize("at", [0, 1000, -1])
async def test_damaged_blob_of_the_cache_is_replaced(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, at: int
) -> None:
    layer = stored([file("a", BIG), file("b", b"b")])
    reference = publish(registry, layer, [file("c")])
    await pull(reference, tmp_path / "one", settings)
    path = Path(Store(settings.cache).blob_path(fastpull.Digest.of(layer.blob)))
    damaged = bytearray(layer.blob)
    damaged[at] ^= 1
    path.chmod(0o600)
    path.write_bytes(damaged)
    _, events = await pull(reference, tmp_path / "two", settings)
    assert names(tmp_path / "two") == {"a", "b", "c"}
    assert (tmp_path / "two/a").read_bytes() == BIG
    assert path.read_bytes() == layer.blob
    assert any(isinstance(event, Warned) and "damaged" in event.message for event in events)


async def test_wrong_index_of_the_cache_does_not_change_the_output(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    layer = stored([file("a", BIG), file("b", b"b")])
    reference = publish(registry, layer)
    await pull(reference, tmp_path / "one", settings)
    store, digest = Store(settings.cache), fastpull.Digest.of(layer.blob)
    from fastpull.layers.index import LayerIndex  # noqa: PLC0415

    good = LayerIndex.from_bytes(store.indexes.read(digest) or b"")
    lie = LayerIndex(good.blob, good.diff_id, good.size, LayerIndex.of([good[0], replace(good[1], path=b"a")]).columns)
    store.indexes.write(digest, lie.to_bytes())
    await pull(reference, tmp_path / "two", settings)
    assert (tmp_path / "two/a").read_bytes() == BIG
    assert (tmp_path / "two/b").read_bytes() == b"b"
    assert store.indexes.read(digest) == good.to_bytes()


async def test_short_blob_without_metadata_is_fetched_again(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    """As a power cut may leave it: the name is there, the content and the seal are not."""
    layer = stored([file("a", BIG)])
    reference = publish(registry, layer)
    await pull(reference, tmp_path / "one", settings)
    store = Store(settings.cache)
    path = store.blob_path(fastpull.Digest.of(layer.blob))
    os.chmod(path, 0o600)
    os.truncate(path, 100)
    os.truncate(f"{path}.seal", 0)
    await pull(reference, tmp_path / "two", settings)
    assert (tmp_path / "two/a").read_bytes() == BIG
    assert not fastpull.cache.CacheManager(settings.cache).verify().corrupt
