from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.errors import FastpullError, InvalidReference
from fastpull.oci.reference import Reference, is_loopback

DIGEST = "sha256:" + "b" * 64


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("debian", "docker.io/library/debian:latest"),
        ("debian:12", "docker.io/library/debian:12"),
        ("user/app", "docker.io/user/app:latest"),
        ("docker.io/debian", "docker.io/library/debian:latest"),
        ("index.docker.io/user/app:v1", "docker.io/user/app:v1"),
        ("quay.io/org/app", "quay.io/org/app:latest"),
        ("localhost/app", "localhost/app:latest"),
        ("localhost:5000/app:v1", "localhost:5000/app:v1"),
        ("registry:5000/app", "registry:5000/app:latest"),
        ("127.0.0.1:5000/ml/app:v1", "127.0.0.1:5000/ml/app:v1"),
        ("[::1]:5000/app:v1", "[::1]:5000/app:v1"),
        ("[fe80::1]/app", "[fe80::1]/app:latest"),
        (f"debian@{DIGEST}", f"docker.io/library/debian@{DIGEST}"),
        (f"quay.io/a/b:v1@{DIGEST}", f"quay.io/a/b:v1@{DIGEST}"),
        ("nvcr.io#nvidia/pytorch:24.01-py3", "nvcr.io/nvidia/pytorch:24.01-py3"),
        ("docker.io#debian", "docker.io/library/debian:latest"),
        ("host:1234#a/b", "host:1234/a/b:latest"),
        ("a--b/c__d/e.f:TAG_1.x-y", "docker.io/a--b/c__d/e.f:TAG_1.x-y"),
        ("MyHost/app", "MyHost/app:latest"),
    ],
)
def test_references_parse_as_docker_and_enroot_do(text: str, full: str) -> None:
    assert str(Reference.parse(text)) == full


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":tag",
        "/app",
        "app:",
        "app@",
        "app@sha256:short",
        "UPPER",
        "quay.io/UPPER/app",
        "a//b",
        "a/",
        "-a",
        "a_",
        "a..b",
        "a___b",
        "quay.io/app:ta g",
        "quay.io/app:-tag",
        "quay.io/app:" + "t" * 129,
        "quay.io:99999/app",
        "quay.io:/app",
        "[::1/app",
        "[::zz]:5000/app",
        "quay..io/app",
        "docker://debian",
        "#app",
        "user@nvcr.io#nvidia/pytorch",
        "quay.io/" + "a" * 260,
        "app:v1:v2",
        "app\n",
        "quay.io/app?x=1",
        "../../etc/passwd",
    ],
)
def test_malformed_references_are_refused(text: str) -> None:
    with pytest.raises(FastpullError) as caught:
        Reference.parse(text)
    assert caught.value.exit_code == 3


def test_docker_hub_has_another_host_than_its_name() -> None:
    assert Reference.parse("debian").host == "registry-1.docker.io"
    assert Reference.parse("quay.io/a/b").host == "quay.io"


def test_registry_of_one_word_is_printed_with_hash_sign() -> None:
    reference = Reference.parse("registry#app:v1")
    assert (reference.registry, str(reference)) == ("registry", "registry#app:v1")
    assert Reference.parse(str(reference)) == reference


def test_version_prefers_digest_over_tag() -> None:
    assert Reference.parse(f"a/b:v1@{DIGEST}").version == DIGEST
    assert Reference.parse("a/b:v1").version == "v1"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1:5000", True),
        ("[::1]:5000", True),
        ("localhost", True),
        ("localhost:5000", True),
        ("registry.localhost", True),
        ("10.0.0.1", False),
        ("example.org", False),
        ("127.0.0.1.example.org", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback_is_recognised_by_name_or_literal_address(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@given(st.text(max_size=60))
def test_any_text_gives_reference_or_typed_error(text: str) -> None:
    try:
        reference = Reference.parse(text)
    except FastpullError as error:
        assert error.exit_code == 3
    else:
        assert Reference.parse(str(reference)) == reference


def test_error_names_the_malformed_part() -> None:
    with pytest.raises(InvalidReference, match=r"lower case.*HOST\[:PORT\]"):
        Reference.parse("quay.io/Upper/app")
