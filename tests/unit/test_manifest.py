from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.errors import FastpullError, MalformedDocument, NoMatchingPlatform, UnsupportedMediaType
from fastpull.oci import media_types
from fastpull.oci.image import Image, ImageConfig
from fastpull.oci.manifest import Index, Manifest, parse_manifest
from fastpull.oci.platform import Platform

DIGEST = "sha256:" + "c" * 64
AMD64 = Platform("linux", "amd64")


def descriptor(media_type: str, **fields: Any) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": DIGEST, "size": 10, **fields}


def manifest(**fields: Any) -> dict[str, Any]:
    return {
        "schemaVersion": 2,
        "mediaType": media_types.OCI_MANIFEST,
        "config": descriptor(media_types.OCI_CONFIG),
        "layers": [descriptor(media_types.OCI_LAYER + "+gzip")],
        **fields,
    }


def index(*entries: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": list(entries), **fields}


def entry(os: str, architecture: str, variant: str | None = None, **fields: Any) -> dict[str, Any]:
    platform = {"os": os, "architecture": architecture, **({"variant": variant} if variant else {})}
    return descriptor(media_types.OCI_MANIFEST, platform=platform, **fields)


def parse(document: Any, content_type: str | None = None) -> Manifest | Index:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return parse_manifest(body, content_type, "test")


def without(document: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != name}


def test_oci_manifest_is_parsed() -> None:
    found = parse(manifest())
    assert isinstance(found, Manifest)
    assert str(found.layers[0].digest) == DIGEST
    assert found.config.size == 10


def test_docker_manifest_is_parsed() -> None:
    docker = manifest(
        mediaType=media_types.DOCKER_MANIFEST,
        config=descriptor(media_types.DOCKER_CONFIG),
        layers=[descriptor(media_types.DOCKER_LAYER + ".gzip")],
    )
    assert isinstance(parse(docker, media_types.DOCKER_MANIFEST), Manifest)


def test_parameters_of_content_type_are_ignored() -> None:
    assert isinstance(parse(manifest(), media_types.OCI_MANIFEST.upper() + "; charset=utf-8"), Manifest)


def test_kind_is_detected_without_media_type() -> None:
    assert isinstance(parse(without(manifest(), "mediaType")), Manifest)
    assert isinstance(parse(without(index(), "mediaType")), Index)


def test_image_without_layers_is_valid() -> None:
    found = parse(manifest(layers=[]))
    assert isinstance(found, Manifest)
    assert found.layers == ()


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"", "no JSON"),
        (b"[]", "no JSON object"),
        (b'{"schemaVersion": 2', "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b'{"schemaVersion": 2, "schemaVersion": 2}', "twice"),
        (b'{"schemaVersion": 2, "config": {"a": 1, "a": 2}}', "twice"),
        (b'{"schemaVersion": NaN}', "NaN"),
        (b"{" + b" " * (4 << 20) + b"}", "more than"),
        (b"[" * 100_000, "no sane JSON"),
        ({}, "'schemaVersion' is missing"),
        (manifest(schemaVersion="2"), "'schemaVersion' is not an integer"),
        (manifest(schemaVersion=True), "'schemaVersion' is not an integer"),
        (manifest(schemaVersion=3), "schemaVersion other than 2"),
        (manifest(manifests=[]), "both 'layers' and 'manifests'"),
        (index(layers=[]), "both 'layers' and 'manifests'"),
        (without(manifest(), "config"), "'config' is missing"),
        (without(manifest(), "layers"), "'layers' is missing"),
        (without(index(), "manifests"), "'manifests' is missing"),
        (manifest(layers={}), "'layers' is not a list"),
        (manifest(layers=[1]), "not an object"),
        (manifest(config=[]), "'config' is not an object"),
        (manifest(layers=[descriptor(media_types.OCI_LAYER, size=-1)]), "out of range"),
        (manifest(layers=[descriptor(media_types.OCI_LAYER, size=1 << 63)]), "out of range"),
        (manifest(layers=[descriptor(media_types.OCI_LAYER, size=1.5)]), "not an integer"),
        (manifest(layers=[descriptor(media_types.OCI_LAYER, digest="sha256:../../x")]), "not a digest"),
        (manifest(layers=[descriptor(media_types.OCI_LAYER, digest="md5:" + "a" * 32)]), "not supported"),
        (manifest(layers=[descriptor("no media type")]), "is not a media type"),
    ],
)
def test_a_malformed_manifest_is_refused_with_its_reason(document: Any, reason: str) -> None:
    with pytest.raises(MalformedDocument, match=reason) as caught:
        parse(document)
    assert caught.value.exit_code == 11
    assert "test" in str(caught.value)


def test_a_body_that_contradicts_its_content_type_is_refused() -> None:
    with pytest.raises(MalformedDocument, match="content type is"):
        parse(manifest(), media_types.OCI_INDEX)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"schemaVersion": 1, "fsLayers": []}, "schema 1"),
        (manifest(mediaType="application/vnd.example+json"), "vnd.example"),
        (manifest(config=descriptor("application/vnd.cncf.helm.config.v1+json")), "not a container image.*helm"),
        (
            manifest(config=descriptor("application/vnd.oci.empty.v1+json"), artifactType="application/vnd.sbom"),
            "not a container image.*sbom",
        ),
        (
            manifest(layers=[descriptor("application/vnd.oci.image.layer.v1.tar+encrypted")]),
            "unsupported layer.*encrypted",
        ),
    ],
)
def test_other_artifacts_are_refused_by_name(document: Any, words: str) -> None:
    with pytest.raises(UnsupportedMediaType, match=words) as caught:
        parse(document)
    assert caught.value.exit_code == 21


def test_schema_1_is_recognised_by_content_type() -> None:
    with pytest.raises(UnsupportedMediaType, match="schema 1"):
        parse({"schemaVersion": 1}, "application/vnd.docker.distribution.manifest.v1+prettyjws")


# --- platforms


def test_entry_of_the_platform_is_chosen() -> None:
    found = parse(index(entry("linux", "arm64"), entry("linux", "amd64", size=20), entry("windows", "amd64")))
    assert isinstance(found, Index)
    assert [candidate.size for candidate in found.candidates(AMD64)] == [20]


def test_best_variant_comes_first() -> None:
    found = parse(
        index(
            entry("linux", "arm", "v5", size=5),
            entry("linux", "arm", "v7", size=7),
            entry("linux", "arm", "v6", size=6),
        )
    )
    assert isinstance(found, Index)
    assert [candidate.size for candidate in found.candidates(Platform("linux", "arm", "v7"))] == [7, 6, 5]


def test_attestations_are_never_images() -> None:
    found = parse(index(entry("unknown", "unknown"), entry("linux", "amd64", size=20)))
    assert isinstance(found, Index)
    assert [candidate.size for candidate in found.candidates(AMD64)] == [20]


def test_nested_indexes_come_after_matching_entries() -> None:
    nested = descriptor(media_types.OCI_INDEX, size=30)
    found = parse(index(nested, entry("linux", "amd64", size=20)))
    assert isinstance(found, Index)
    assert [candidate.size for candidate in found.candidates(AMD64)] == [20, 30]


def test_the_error_for_a_missing_platform_lists_the_available_ones() -> None:
    found = parse(index(entry("linux", "arm64", "v8"), entry("windows", "amd64"), entry("unknown", "unknown")))
    assert isinstance(found, Index)
    with pytest.raises(NoMatchingPlatform, match="linux/arm64/v8, windows/amd64") as caught:
        found.candidates(AMD64)
    assert "--platform" in str(caught.value)


# --- configs


def config(**fields: Any) -> bytes:
    rootfs = {"type": "layers", "diff_ids": [DIGEST]}
    return json.dumps({"os": "linux", "architecture": "amd64", "rootfs": rootfs, **fields}).encode()


def test_config_is_parsed() -> None:
    found = ImageConfig.parse(
        config(
            created="2026-01-01T00:00:00Z", config={"Env": ["A=b"], "Cmd": None, "Labels": {"x": "y"}, "User": "1:2"}
        ),
        "c",
    )
    assert (found.platform, found.env, found.cmd, found.labels, found.user) == (
        AMD64,
        ("A=b",),
        (),
        (("x", "y"),),
        "1:2",
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"rootfs": None},
        {"rootfs": {"type": "windows", "diff_ids": []}},
        {"rootfs": {"type": "layers", "diff_ids": ["sha256:x"]}},
        {"rootfs": {"type": "layers", "diff_ids": [1]}},
        {"config": {"Env": "A=b"}},
        {"config": {"Labels": {"a": 1}}},
        {"config": []},
    ],
)
def test_a_malformed_config_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(MalformedDocument):
        ImageConfig.parse(config(**fields), "c")


def test_the_numbers_of_layers_and_diff_ids_must_match() -> None:
    found = parse(manifest(layers=[]))
    assert isinstance(found, Manifest)
    with pytest.raises(MalformedDocument, match="0 layers, but 1 diff_ids"):
        Image("ref", found.config.digest, found, ImageConfig.parse(config(), "c"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["schemaVersion", "mediaType", "config", "layers", "manifests", "digest", "size", "platform", "os"]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_body_gives_manifest_or_typed_error(body: bytes) -> None:
    for read in (lambda: parse_manifest(body, None, "fuzz"), lambda: ImageConfig.parse(body, "fuzz")):
        try:
            read()
        except FastpullError as error:
            assert error.exit_code in (11, 21)
