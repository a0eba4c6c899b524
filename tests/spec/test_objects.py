"""What a registry may hold under an image's name: indexes in indexes, odd layers, and things that are no images."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from aiohttp import web

import fastpull
from fastpull.config.settings import Settings
from fastpull.errors import (
    CacheError,
    DecompressError,
    DiffIdMismatch,
    DigestMismatch,
    FastpullError,
    IntegrityError,
    MalformedDocument,
    NoMatchingPlatform,
    NotFound,
    SizeMismatch,
    UnsupportedMediaType,
)
from fastpull.layers.archive import archive
from fastpull.oci import media_types
from fastpull.sources.resolve import MAX_DOCUMENTS
from fastpull.telemetry.events import Warned
from tests.support.layers import StoredLayer, file, publish, stored, whiteout
from tests.support.peers import skopeo
from tests.support.registry import FaultyRegistry, no_ranges
from tests.support.trees import names

GZIP = media_types.OCI_LAYER + "+gzip"
ZSTD = media_types.OCI_LAYER + "+zstd"
NAME = "test/image"


def digest(content: bytes, algorithm: str = "sha256") -> str:
    return f"{algorithm}:{hashlib.new(algorithm, content).hexdigest()}"


def zstd(tar: bytes) -> bytes:
    return zstandard.compress(tar, 3)


class ObjectShelf:
    """Puts objects under ``test/image`` of a registry."""

    def __init__(self, registry: FaultyRegistry) -> None:
        self.registry = registry
        self.reference = f"{registry.address}/{NAME}:v1"

    def blob(self, content: bytes, media_type: str, algorithm: str = "sha256", **fields: Any) -> dict[str, Any]:
        name = digest(content, algorithm)
        self.registry.blobs[name] = content
        return {"mediaType": media_type, "digest": name, "size": len(content), **fields}

    def document(self, content: Any, tag: str = "v1", algorithm: str = "sha256", **fields: Any) -> dict[str, Any]:
        """Publishes a manifest or index, and returns its descriptor."""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        media_type = json.loads(body).get("mediaType", media_types.OCI_MANIFEST)
        name = digest(body, algorithm)
        for version in (tag, name):
            self.registry.manifests[NAME, version] = (media_type, body)
        return {"mediaType": media_type, "digest": name, "size": len(body), **fields}

    def config(self, *layers: StoredLayer, **fields: Any) -> dict[str, Any]:
        rootfs = {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]}
        document = {"os": "linux", "architecture": "amd64", "config": {}, "rootfs": rootfs, **fields}
        return self.blob(json.dumps(document).encode(), media_types.OCI_CONFIG)

    def manifest(self, config: dict[str, Any], *layers: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {
            "schemaVersion": 2,
            "mediaType": media_types.OCI_MANIFEST,
            "config": config,
            "layers": list(layers),
            **fields,
        }

    def image(self, *layers: StoredLayer, layer_type: str = GZIP, **config: Any) -> dict[str, Any]:
        blobs = [self.blob(layer.blob, layer_type) for layer in layers]
        return self.manifest(self.config(*layers, **config), *blobs)

    def index(self, *entries: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": list(entries), **fields}

    def on(self, os_name: str, architecture: str, variant: str = "", name: str = "f") -> dict[str, Any]:
        """An image for a platform, whose one file tells which; returns its descriptor with the platform."""
        platform = {"os": os_name, "architecture": architecture, **({"variant": variant} if variant else {})}
        image = self.image(stored([file(name, str(platform).encode())]), **platform)
        return self.document(image, tag=f"{os_name}-{architecture}{variant}", platform=platform)


@pytest.fixture
def shelf(registry: FaultyRegistry) -> ObjectShelf:
    return ObjectShelf(registry)


Pull = Callable[..., Any]


@pytest.fixture
def pull(shelf: ObjectShelf, settings: Settings, tmp_path: Path) -> Pull:
    """Pulls what is on the shelf into a directory, and returns that."""

    async def run(platform: str = "linux/amd64", reference: str = "", **changes: Any) -> Path:
        async with fastpull.Client(replace(settings, **changes)) as client:
            await client.pull(reference or shelf.reference, fastpull.Directory(tmp_path / "out", force=True), platform)
        return tmp_path / "out"

    return run


async def refused(pull: Pull, kind: type[FastpullError], words: str | None = None, **how: Any) -> FastpullError:
    with pytest.raises(kind, match=words) as caught:
        await pull(**how)
    return caught.value


# --- indexes and platforms


@pytest.mark.case("objects", "an index of indexes")
@pytest.mark.parametrize("depth", [1, 2, 4])
async def test_an_index_may_hold_indexes(shelf: ObjectShelf, pull: Pull, depth: int) -> None:
    entry = shelf.on("linux", "amd64")
    for _ in range(depth):
        entry = shelf.document(shelf.index(entry))
    assert names(await pull()) == {"f"}


@pytest.mark.case("objects", "indexes nested too deep or in a cycle")
async def test_the_depth_of_indexes_is_limited(shelf: ObjectShelf, pull: Pull) -> None:
    entry = shelf.on("linux", "amd64")
    for _ in range(5):
        entry = shelf.document(shelf.index(entry))
    await refused(pull, MalformedDocument, "more than 4 nested indexes")


@pytest.mark.case("objects", "an index with very many indexes")
async def test_the_width_of_indexes_is_limited(shelf: ObjectShelf, pull: Pull) -> None:
    inner = [
        shelf.document(shelf.index(annotations={"n": str(number)}), tag="x") for number in range(MAX_DOCUMENTS + 9)
    ]
    shelf.document(shelf.index(*inner))
    await refused(pull, MalformedDocument, f"more than {MAX_DOCUMENTS} manifests")
    assert len(shelf.registry.requests) <= MAX_DOCUMENTS + 5


@pytest.mark.case("objects", "variants: arm v5, v6, v7, arm64 v8")
@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("linux/arm/v7", "v7"),
        ("linux/arm/v6", "v6"),
        ("linux/arm", "v7"),
        ("linux/arm/v8", "v7"),
        ("armhf", "v7"),
        ("linux/arm64", "v8"),
        ("aarch64", "v8"),
        ("linux/arm64/v8", "v8"),
    ],
)
async def test_the_best_variant_is_chosen(shelf: ObjectShelf, pull: Pull, wanted: str, found: str) -> None:
    shelf.document(shelf.index(*(shelf.on("linux", "arm", v) for v in ("v6", "v7")), shelf.on("linux", "arm64", "v8")))
    assert f"'{found}'" in ((await pull(wanted)) / "f").read_text()


@pytest.mark.case("objects", "variants: only newer ones available")
async def test_a_newer_variant_is_never_chosen(shelf: ObjectShelf, pull: Pull) -> None:
    shelf.document(shelf.index(shelf.on("linux", "arm", "v7")))
    await refused(pull, NoMatchingPlatform, "linux/arm/v7", platform="linux/arm/v6")


@pytest.mark.case("objects", "attestation manifests (unknown/unknown) are skipped")
async def test_attestations_are_skipped(shelf: ObjectShelf, pull: Pull) -> None:
    statement = shelf.blob(b"{}", "application/vnd.in-toto+json")
    attestation = shelf.document(
        shelf.manifest(shelf.config(), statement),
        platform={"os": "unknown", "architecture": "unknown"},
        annotations={"vnd.docker.reference.type": "attestation-manifest"},
    )
    shelf.document(shelf.index(attestation, shelf.on("linux", "amd64")))
    assert names(await pull()) == {"f"}
    assert all(attestation["digest"] not in one.path for one in shelf.registry.requests)
    error = await refused(pull, NoMatchingPlatform, "linux/amd64", platform="linux/s390x")
    assert "unknown" not in str(error)


@pytest.mark.case("objects", "artifacts beside the image in an index")
async def test_artifacts_beside_the_image_are_skipped(shelf: ObjectShelf, pull: Pull) -> None:
    empty = shelf.blob(b"{}", "application/vnd.oci.empty.v1+json")
    artifact = shelf.document(shelf.manifest(empty, empty, artifactType="application/spdx+json"))
    image = shelf.on("linux", "amd64")
    del image["platform"]
    shelf.document(shelf.index(artifact, image))
    assert names(await pull()) == {"f"}
    shelf.document(shelf.index(artifact))
    await refused(pull, UnsupportedMediaType, "a bill of materials")


EROFS = "application/vnd.erofs.layer.v1"
PLATFORM = {"os": "linux", "architecture": "amd64"}


def erofs(shelf: ObjectShelf, **platform: Any) -> dict[str, Any]:
    """An entry for an image whose layer is an EROFS image."""
    config = shelf.blob(
        json.dumps({**PLATFORM, "rootfs": {"type": "layers", "diff_ids": []}}).encode(), media_types.OCI_CONFIG
    )
    entry = shelf.document(shelf.manifest(config, shelf.blob(b"erofs", EROFS)))
    return {**entry, "platform": {**PLATFORM, **platform}}


@pytest.mark.case("objects", "an unsupported matching entry (EROFS) is skipped for the next")
@pytest.mark.parametrize("fields", [{}, {"os.features": ["erofs"]}, {"variant": "v1"}])
async def test_an_unreadable_entry_gives_way_to_the_next(
    shelf: ObjectShelf, pull: Pull, fields: dict[str, Any]
) -> None:
    shelf.document(shelf.index(erofs(shelf, **fields), shelf.on("linux", "amd64")))
    await pull("linux/amd64")


@pytest.mark.case("objects", "os.features: entries without are preferred")
async def test_an_entry_that_needs_features_is_the_last_choice(shelf: ObjectShelf, pull: Pull) -> None:
    featured = shelf.on("linux", "amd64", name="featured")
    featured["platform"]["os.features"] = ["something"]
    shelf.document(shelf.index(featured, shelf.on("linux", "amd64", name="plain")))
    assert names(await pull("linux/amd64")) == {"plain"}
    shelf.document(shelf.index(featured))
    assert names(await pull("linux/amd64")) == {"featured"}


@pytest.mark.case("objects", "no matching entry is supported")
@pytest.mark.parametrize("is_nested", [False, True])
async def test_if_no_entry_can_be_read_the_error_lists_them(shelf: ObjectShelf, pull: Pull, is_nested: bool) -> None:
    entries = [erofs(shelf), shelf.on("linux", "arm64")]
    if is_nested:
        entries = [shelf.document(shelf.index(*entries), tag="inner")]
    shelf.document(shelf.index(*entries))
    await refused(pull, UnsupportedMediaType, "EROFS.*The index has: .*linux/amd64 .*vnd.erofs.*linux/arm64")


@pytest.mark.case("objects", "an index without the platform")
async def test_the_error_for_a_missing_platform_lists_the_available_ones(shelf: ObjectShelf, pull: Pull) -> None:
    shelf.document(shelf.index(shelf.on("linux", "arm64"), shelf.on("windows", "amd64")))
    await refused(pull, NoMatchingPlatform, "the index has linux/arm64, windows/amd64")


@pytest.mark.case("objects", "a single manifest for another platform")
async def test_a_single_manifest_of_another_platform_is_no_match(shelf: ObjectShelf, pull: Pull) -> None:
    shelf.document(shelf.image(stored([file("f")]), architecture="arm64"))
    await refused(pull, NoMatchingPlatform, "the index has linux/arm64")


NO_PLATFORMS: dict[str, dict[str, Any]] = {
    "neither field": {"os": None, "architecture": None},
    "empty fields": {"os": "", "architecture": "", "variant": "v9"},
    "no architecture": {"os": "linux", "architecture": ""},
}


@pytest.mark.case("objects", "a config without a platform")
@pytest.mark.parametrize("fields", NO_PLATFORMS.values(), ids=NO_PLATFORMS)
@pytest.mark.parametrize("kind", ["manifest", "index that names it", "index that does not", "index with empty names"])
async def test_an_image_without_a_platform_matches_every_one_with_a_warning(
    shelf: ObjectShelf, settings: Settings, fields: dict[str, Any], kind: str
) -> None:
    platforms: dict[str, list[dict[str, str] | None]] = {
        "index that names it": [{"os": "linux", "architecture": "amd64"}, {"os": "linux", "architecture": "arm64"}],
        "index that does not": [None],
        "index with empty names": [{"os": "linux", "architecture": ""}],
    }
    entry = shelf.document(shelf.image(stored([file("f")]), **fields))
    if kind != "manifest":
        named = [{**entry, "platform": platform} if platform else entry for platform in platforms[kind]]
        shelf.document(shelf.index(*named))
    for platform in ("linux/amd64", "linux/arm64/v8"):
        events: list[object] = []
        async with fastpull.Client(settings, on_event=events.append) as client:
            image = await client.resolve(shelf.reference, platform)
        assert str(image.platform) == platform
        (warning,) = (event.message for event in events if isinstance(event, Warned))
        assert "names no platform" in warning
        assert platform in warning


async def test_an_image_for_another_system_without_an_architecture_is_no_match(shelf: ObjectShelf, pull: Pull) -> None:
    shelf.document(shelf.image(stored([file("f")]), os="windows", architecture=""))
    await refused(pull, NoMatchingPlatform, "the index has windows/amd64")


async def test_an_entry_with_the_platform_precedes_one_without(shelf: ObjectShelf, pull: Pull) -> None:
    unnamed = shelf.document(shelf.image(stored([file("any")]), architecture="", os=""), tag="any")
    shelf.document(shelf.index(unnamed, shelf.on("linux", "amd64")))
    assert names(await pull()) == {"f"}
    assert names(await pull("linux/s390x")) == {"any"}


# --- documents


@pytest.mark.case("objects", "Accept lists the manifests and indexes of OCI and Docker")
async def test_requests_accept_all_media_types(shelf: ObjectShelf, pull: Pull) -> None:
    seen: list[str] = []
    original = shelf.registry.serve_manifest

    async def look(request: web.Request, name: str, version: str) -> web.StreamResponse:
        seen.append(request.headers["Accept"])
        return await original(request, name, version)

    shelf.registry.serve_manifest = look  # type: ignore[method-assign]
    shelf.document(shelf.index(shelf.on("linux", "amd64")))
    await pull()
    assert len(seen) == 2
    assert all(set(one.split(", ")) == media_types.MANIFESTS | media_types.INDEXES for one in seen)


@pytest.mark.case("objects", "Docker's media types in a manifest list")
async def test_docker_media_types_are_an_image(shelf: ObjectShelf, pull: Pull) -> None:
    layer = stored([file("f")])
    config = {**shelf.config(layer), "mediaType": media_types.DOCKER_CONFIG}
    blob = shelf.blob(layer.blob, media_types.DOCKER_LAYER + ".gzip")
    image = shelf.document(shelf.manifest(config, blob, mediaType=media_types.DOCKER_MANIFEST), tag="x")
    platform = {"os": "linux", "architecture": "amd64"}
    shelf.document(shelf.index({**image, "platform": platform}, mediaType=media_types.DOCKER_LIST))
    assert names(await pull()) == {"f"}


@pytest.mark.case("objects", "Content-Type with parameters, generic or missing")
@pytest.mark.parametrize(
    "said", ["{}; charset=utf-8", "{};q=1", "application/json", "text/plain", "application/octet-stream"]
)
async def test_a_content_type_may_be_more_or_less_specific(shelf: ObjectShelf, pull: Pull, said: str) -> None:
    shelf.document(shelf.image(stored([file("f")])))
    body = shelf.registry.manifests[NAME, "v1"][1]
    headers = {"Content-Type": said.format(media_types.OCI_MANIFEST)}

    async def serve(request: web.Request, name: str, version: str) -> web.StreamResponse:
        return web.Response(body=body, headers=headers)

    shelf.registry.serve_manifest = serve  # type: ignore[method-assign]
    assert names(await pull()) == {"f"}


@pytest.mark.case("objects", "a Content-Type that contradicts the body")
async def test_a_content_type_that_contradicts_the_body_is_refused(shelf: ObjectShelf, pull: Pull) -> None:
    shelf.document(shelf.image(stored([file("f")])))
    shelf.registry.manifests[NAME, "v1"] = (media_types.OCI_INDEX, shelf.registry.manifests[NAME, "v1"][1])
    await refused(pull, MalformedDocument, "content type is")


@pytest.mark.case("objects", "a wrong size or digest: the error names host and image")
@pytest.mark.parametrize("kind", ["manifest", "config"])
@pytest.mark.parametrize("change", [{"size": 5}, {"size": 1 << 40}, {"digest": digest(b"something else")}])
async def test_the_error_for_a_malformed_document_names_host_and_image(
    shelf: ObjectShelf, pull: Pull, kind: str, change: dict[str, Any]
) -> None:
    layer = stored([file("f")])
    config = shelf.config(layer)
    if kind == "config":
        shelf.registry.blobs[change.get("digest", "")] = shelf.registry.blobs[config["digest"]]
        config |= change
    image = shelf.document(shelf.manifest(config, shelf.blob(layer.blob, GZIP)), tag="x", platform=PLATFORM)
    if kind == "manifest":
        name = change.get("digest", image["digest"])
        shelf.registry.manifests[NAME, name] = shelf.registry.manifests[NAME, image["digest"]]
        shelf.document(shelf.index({**image, **change}))
    else:
        shelf.document(shelf.index(image))
    named = config if kind == "config" else image
    error = await refused(pull, IntegrityError)
    for fact in (f"from {shelf.registry.address}", shelf.reference, change.get("digest", named["digest"])):
        assert fact in str(error)


@pytest.mark.case("objects", "a size larger than any disk")
async def test_the_error_for_an_impossible_size_names_the_image(shelf: ObjectShelf, pull: Pull) -> None:
    layer = stored([file("f")])
    blob = {**shelf.blob(layer.blob, GZIP), "size": 1 << 62}
    shelf.document(shelf.manifest(shelf.config(layer), blob))
    error = await refused(pull, CacheError, "no space left.*4611686018427387904 bytes are missing")
    assert f"blob {blob['digest']} of {shelf.reference}" in str(error)


@pytest.mark.case("objects", "the digest of the body takes precedence over Docker-Content-Digest")
async def test_the_digest_of_the_body_counts_and_not_the_header(
    shelf: ObjectShelf, pull: Pull, settings: Settings
) -> None:
    made = shelf.document(shelf.image(stored([file("f")])))
    media_type, body = shelf.registry.manifests[NAME, "v1"]

    async def serve(request: web.Request, name: str, version: str) -> web.StreamResponse:
        headers = {"Content-Type": media_type, "Docker-Content-Digest": "sha256:" + "0" * 64}
        return web.Response(body=body, headers=headers)

    shelf.registry.serve_manifest = serve  # type: ignore[method-assign]
    async with fastpull.Client(settings) as client:
        assert str((await client.resolve(shelf.reference, "linux/amd64")).digest) == made["digest"]
    await refused(pull, DigestMismatch, "got digest", reference=f"{shelf.registry.address}/{NAME}@sha256:{'0' * 64}")


@pytest.mark.case("objects", "a tag is resolved once and pinned")
async def test_a_tag_that_moves_in_mid_pull_does_not_matter(
    shelf: ObjectShelf, settings: Settings, tmp_path: Path
) -> None:
    first = shelf.document(shelf.index(shelf.on("linux", "amd64", name="first")))
    async with fastpull.Client(settings) as client:
        image = await client.resolve(shelf.reference, "linux/amd64")
        shelf.document(shelf.index(shelf.on("linux", "amd64", name="second")))
        await client.pull(image, tmp_path / "out")
    assert names(tmp_path / "out") == {"first"}
    by_tag = [one for one in shelf.registry.requests if one.path.endswith("/manifests/v1")]
    assert len(by_tag) == 1
    assert first["digest"] != digest(shelf.registry.manifests[NAME, "v1"][1])


@pytest.mark.case("objects", "a manifest of more than 4 MiB")
async def test_a_manifest_of_more_than_4_mib_is_refused(shelf: ObjectShelf, pull: Pull) -> None:
    shelf.document(shelf.manifest(shelf.config(), annotations={"a": "x" * (4 << 20)}))
    await refused(pull, FastpullError, "more than 4194304 bytes")


@pytest.mark.case("objects", "negative, zero or wrong sizes")
@pytest.mark.parametrize(
    ("size", "kind"), [(-1, MalformedDocument), (0, IntegrityError), (1, SizeMismatch), (1 << 40, FastpullError)]
)
@pytest.mark.parametrize("what", ["config", "layer"])
async def test_a_wrong_size_is_found(
    shelf: ObjectShelf, pull: Pull, what: str, size: int, kind: type[FastpullError]
) -> None:
    layer = stored([file("f")])
    config, blob = shelf.config(layer), shelf.blob(layer.blob, GZIP)
    (config if what == "config" else blob)["size"] = size
    shelf.document(shelf.manifest(config, blob))
    await refused(pull, kind)


@pytest.mark.case("objects", "different numbers of diff_ids and layers")
async def test_the_numbers_of_layers_and_diff_ids_must_match(shelf: ObjectShelf, pull: Pull) -> None:
    layer = stored([file("f")])
    blob = shelf.blob(layer.blob, GZIP)
    for diff_ids in ([], [layer, layer]):
        shelf.document(shelf.manifest(shelf.config(*diff_ids), blob))
        await refused(pull, MalformedDocument, "1 layers, but")


@pytest.mark.case("objects", "history with empty layers")
async def test_empty_layers_of_the_history_are_skipped(shelf: ObjectShelf, pull: Pull) -> None:
    history = [{"created_by": "RUN x"}, {"created_by": "ENV a=b", "empty_layer": True}, {"empty_layer": True}]
    shelf.document(shelf.image(stored([file("f")]), history=history))
    assert names(await pull()) == {"f"}


# --- what is no image


@pytest.mark.case("objects", "Docker's schema 1 is rejected by name")
async def test_schema_1_is_refused_by_name(shelf: ObjectShelf, pull: Pull) -> None:
    shelf.document({"schemaVersion": 1, "name": NAME, "tag": "v1", "fsLayers": [], "history": []})
    await refused(pull, UnsupportedMediaType, "schema 1")


ARTIFACTS = [
    ("application/vnd.cncf.helm.config.v1+json", "", "a Helm chart.*helm pull"),
    ("application/vnd.sylabs.sif.config.v1+json", "", "a SIF image.*apptainer pull oras://"),
    ("application/vnd.oci.empty.v1+json", "application/spdx+json", "a bill of materials"),
    ("application/vnd.oci.empty.v1+json", "application/vnd.example", "an artifact.*vnd.example.*oras pull"),
    ("application/vnd.oci.empty.v1+json", "application/vnd.dev.sigstore.bundle.v0.3+json", "a signature"),
    ("application/vnd.cncf.notary.signature", "", "a signature.*notation"),
    ("application/vnd.wasm.config.v0+json", "", "a WebAssembly module"),
    ("application/vnd.docker.ai.model.config.v0.1+json", "", "a model"),
    ("application/vnd.unknown.config.v1+json", "", "an artifact.*vnd.unknown"),
]


@pytest.mark.case("objects", "artifacts and Helm charts are rejected with advice")
@pytest.mark.parametrize(("config_type", "artifact_type", "words"), ARTIFACTS)
async def test_an_artifact_is_refused_with_the_program_that_can_fetch_it(
    shelf: ObjectShelf, pull: Pull, config_type: str, artifact_type: str, words: str
) -> None:
    config = shelf.blob(b"{}", config_type)
    fields = {"artifactType": artifact_type} if artifact_type else {}
    shelf.document(shelf.manifest(config, shelf.blob(b"x", "application/octet-stream"), **fields))
    error = await refused(pull, UnsupportedMediaType, f"not a container image but {words}")
    assert error.exit_code == 21
    assert shelf.registry.blob_requests() == []


@pytest.mark.case("objects", "a cosign signature that looks like an image")
async def test_a_cosign_signature_is_named(shelf: ObjectShelf, pull: Pull) -> None:
    payload = shelf.blob(b"{}", "application/vnd.dev.cosign.simplesigning.v1+json")
    shelf.document(shelf.manifest(shelf.config(stored([])), payload))
    await refused(pull, UnsupportedMediaType, "unsupported layer, a signature.*cosign verify")


@pytest.mark.case("objects", "encrypted, EROFS, Nydus and other layers are rejected by name")
@pytest.mark.parametrize(
    ("layer_type", "words"),
    [
        (GZIP + "+encrypted", "encrypted.*--decryption-key"),
        (media_types.OCI_LAYER + "+encrypted", "encrypted"),
        ("application/vnd.oci.image.layer.nydus.blob.v1", "a Nydus blob"),
        ("application/vnd.erofs.layer.v1", "an EROFS image"),
        ("application/vnd.oci.image.layer.v1.tar+lzip", "of type.*lzip"),
        ("application/octet-stream", "of type.*octet-stream"),
    ],
)
async def test_a_layer_in_another_format_is_named(shelf: ObjectShelf, pull: Pull, layer_type: str, words: str) -> None:
    shelf.document(shelf.image(stored([file("f")]), layer_type=layer_type))
    await refused(pull, UnsupportedMediaType, f"unsupported layer.*{words}")
    assert shelf.registry.blob_requests() == []


# --- layers


@pytest.mark.case("objects", "zero layers are an empty root filesystem")
@pytest.mark.parametrize("output", ["out/", "out.sqsh", "out.tar"])
async def test_no_layers_are_an_empty_root_filesystem(
    shelf: ObjectShelf, settings: Settings, tmp_path: Path, output: str
) -> None:
    shelf.document(shelf.image())
    async with fastpull.Client(settings) as client:
        report = await client.pull(shelf.reference, f"{tmp_path}/{output}", "linux/amd64")
    assert report.entries == 0
    if output == "out/":
        assert os.listdir(tmp_path / "out") == []
    else:
        assert (tmp_path / output).stat().st_size > 0


@pytest.mark.case("objects", "a layer without entries")
async def test_a_layer_may_be_empty(shelf: ObjectShelf, pull: Pull) -> None:
    shelf.document(shelf.image(stored([]), stored([file("f")]), stored([])))
    assert names(await pull()) == {"f"}


@pytest.mark.case("objects", "a layer listed twice is fetched once")
@pytest.mark.parametrize("workers", [1, 4])
async def test_an_image_may_have_the_same_layer_twice(shelf: ObjectShelf, pull: Pull, workers: int) -> None:
    base, hide = stored([file("f", os.urandom(3 << 20)), file("g")], bytes), stored([whiteout("f")])
    shelf.document(shelf.image(base, hide, base, base))
    assert names(await pull(workers=workers)) == {"f", "g"}
    assert shelf.registry.sent[digest(base.blob)] == len(base.blob)


@pytest.mark.case("objects", "'data' in place of a request")
async def test_embedded_data_saves_a_request(shelf: ObjectShelf, pull: Pull) -> None:
    layer = stored([file("f")])
    config = shelf.config(layer)
    content = shelf.registry.blobs.pop(config["digest"])
    config["data"] = base64.b64encode(content).decode()
    image = shelf.document(shelf.manifest(config, shelf.blob(layer.blob, GZIP)), tag="x")
    _, body = shelf.registry.manifests.pop((NAME, image["digest"]))
    shelf.document(shelf.index({**image, "data": base64.b64encode(body).decode()}))
    assert names(await pull()) == {"f"}


@pytest.mark.case("objects", "'data' with wrong content")
@pytest.mark.parametrize(
    ("data", "words"),
    [("AAAA", "'data' has 3 bytes"), ("not base64", "not base64"), (7, "not a string"), ("", "0 bytes")],
)
@pytest.mark.parametrize("what", ["config", "layer"])
async def test_wrong_embedded_data_is_refused(shelf: ObjectShelf, pull: Pull, what: str, data: Any, words: str) -> None:
    layer = stored([file("f")])
    config, blob = shelf.config(layer), shelf.blob(layer.blob, GZIP)
    (config if what == "config" else blob)["data"] = data
    shelf.document(shelf.manifest(config, blob))
    await refused(pull, MalformedDocument, words)


async def test_embedded_data_of_the_right_size_is_hashed(shelf: ObjectShelf, pull: Pull) -> None:
    layer = stored([file("f")])
    config = shelf.config(layer)
    content = shelf.registry.blobs[config["digest"]].replace(b"linux", b"LINUX")
    config["data"] = base64.b64encode(content).decode()
    shelf.document(shelf.manifest(config, shelf.blob(layer.blob, GZIP)))
    await refused(pull, MalformedDocument, "'data' is not what sha256:")


@pytest.mark.case("objects", "non-distributable layers are fetched from the registry, never from their urls")
@pytest.mark.parametrize(
    "layer_type", [media_types.OCI_FOREIGN_LAYER + "+gzip", media_types.DOCKER_FOREIGN_LAYER + ".gzip"]
)
async def test_urls_of_descriptors_are_never_used(
    shelf: ObjectShelf, pull: Pull, settings: Settings, layer_type: str
) -> None:
    async with FaultyRegistry() as elsewhere:
        layer = stored([file("f")])
        blob = shelf.blob(layer.blob, layer_type, urls=[f"http://{elsewhere.address}/layer"])
        shelf.document(shelf.manifest(shelf.config(layer), blob))
        assert names(await pull()) == {"f"}
        del shelf.registry.blobs[blob["digest"]]
        await refused(
            pull,
            NotFound,
            f"no non-distributable layer.*does not allow registries to distribute it.*{elsewhere.address}",
            cache=settings.cache + "-other",
        )
        assert elsewhere.requests == []


@pytest.mark.case("objects", "sha512 for manifests, configs, layers and diff_ids")
async def test_sha512_digests_are_supported(shelf: ObjectShelf, pull: Pull, settings: Settings) -> None:
    tar = archive([file("f", os.urandom(1 << 20))])
    layer = StoredLayer(gzip.compress(tar, 1), digest(tar, "sha512"))
    rootfs = {"type": "layers", "diff_ids": [layer.diff_id]}
    config = {"os": "linux", "architecture": "amd64", "rootfs": rootfs}
    manifest = shelf.manifest(
        shelf.blob(json.dumps(config).encode(), media_types.OCI_CONFIG, "sha512"),
        shelf.blob(layer.blob, GZIP, "sha512"),
    )
    image = shelf.document(manifest, algorithm="sha512", tag="x")
    shelf.document(shelf.index({**image, "platform": {"os": "linux", "architecture": "amd64"}}))
    assert names(await pull()) == {"f"}
    assert names(await pull(reference=f"{shelf.registry.address}/{NAME}@{image['digest']}")) == {"f"}
    verified = fastpull.cache.CacheManager(settings.cache).verify()
    assert not verified.corrupt
    blob = shelf.registry.blobs[digest(layer.blob, "sha512")]
    shelf.registry.blobs[digest(layer.blob, "sha512")] = blob[:-1] + bytes([blob[-1] ^ 1])
    await refused(pull, DigestMismatch, "sha512:", cache=settings.cache + "-other")


@pytest.mark.case("objects", "unsupported digest algorithms")
@pytest.mark.parametrize("name", ["blake3:" + "a" * 64, "md5:" + "a" * 32, "sha384:" + "a" * 96])
async def test_an_unknown_digest_algorithm_is_named(shelf: ObjectShelf, pull: Pull, name: str) -> None:
    layer = stored([file("f")])
    shelf.document(shelf.manifest(shelf.config(layer), {**shelf.blob(layer.blob, GZIP), "digest": name}))
    await refused(pull, MalformedDocument, f"algorithm is not supported.*{name.partition(':')[0]}")


def chunked(tar: bytes) -> bytes:
    """As zstd:chunked: a frame for each piece, and a table of contents in skippable frames."""
    frames = b"".join(zstd(tar[at : at + 1000]) for at in range(0, len(tar), 1000))
    table = zstd(b'{"version": 1, "entries": []}')
    footer = bytes(64)
    return frames + b"".join(b"\x50\x2a\x4d\x18" + struct.pack("<I", len(one)) + one for one in (table, footer))


@pytest.mark.case("objects", "gzip, zstd, zstd:chunked and plain tar")
@pytest.mark.parametrize(
    ("layer_type", "compress"),
    [(GZIP, None), (ZSTD, zstd), (ZSTD, chunked), (media_types.OCI_LAYER, bytes)],
    ids=["gzip", "zstd", "zstd:chunked", "tar"],
)
async def test_supported_layer_compressions(shelf: ObjectShelf, pull: Pull, layer_type: str, compress: Any) -> None:
    content = os.urandom(100_000)
    shelf.document(shelf.image(stored([file("f", content)], compress), layer_type=layer_type))
    assert ((await pull()) / "f").read_bytes() == content


@pytest.mark.case("objects", "zstd:chunked as written by buildah")
@pytest.mark.peer("skopeo")
@pytest.mark.parametrize("form", ["zstd", "zstd:chunked", "gzip"])
def test_layers_that_skopeo_compressed_are_read(tmp_path: Path, settings: Settings, form: str) -> None:
    """From a tar without padding: skopeo 1.9 leaves padding out of zstd:chunked, and so breaks its own diff_id."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/f").write_bytes(os.urandom(300_000))
    (tmp_path / "tree/empty").write_bytes(b"")
    subprocess.run(["tar", "-b1", "-cf", tmp_path / "tree.tar", "-C", tmp_path / "tree", "."], check=True)
    target = f"oci:{tmp_path}/layout:v1"
    skopeo("copy", f"--dest-compress-format={form}", "--dest-compress", f"tarball:{tmp_path}/tree.tar", target)
    fastpull.pull(target, tmp_path / "out", settings=settings)
    assert (tmp_path / "out/f").read_bytes() == (tmp_path / "tree/f").read_bytes()
    assert names(tmp_path / "out") == {"f", "empty"}


@pytest.mark.case(
    "objects", "a media type that contradicts the layer's compression: the content decides (documented deviation)"
)
@pytest.mark.parametrize(("layer_type", "compress"), [(GZIP, zstd), (ZSTD, None), (GZIP, bytes)])
async def test_the_bytes_of_a_layer_decide_on_its_compression(
    shelf: ObjectShelf, pull: Pull, layer_type: str, compress: Any
) -> None:
    shelf.document(shelf.image(stored([file("f")], compress), layer_type=layer_type))
    assert names(await pull()) == {"f"}


@pytest.mark.case("objects", "a layer in an unknown format")
async def test_a_layer_of_other_bytes_is_an_error(shelf: ObjectShelf, pull: Pull) -> None:
    tar = archive([file("f")])
    shelf.document(shelf.image(StoredLayer(b"BZh9" + os.urandom(100), digest(tar))))
    await refused(pull, FastpullError)
    shelf.document(shelf.image(StoredLayer(gzip.compress(tar)[:-20], digest(tar))))
    await refused(pull, DecompressError)


@pytest.mark.case("objects", "a wrong diff_id")
async def test_a_wrong_diff_id_is_found(shelf: ObjectShelf, pull: Pull) -> None:
    shelf.document(shelf.image(StoredLayer(stored([file("f")]).blob, digest(b"something else"))))
    await refused(pull, DiffIdMismatch)


async def test_an_image_of_another_builder_is_pulled_in_one_request_per_layer(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    registry.faults.append(no_ranges)
    reference = publish(registry, *[[file(f"f{number}")] for number in range(5)])
    async with fastpull.Client(settings) as client:
        await client.pull(reference, tmp_path / "out", "linux/amd64")
    assert len([one for one in registry.blob_requests() if one.range]) == 5
