from __future__ import annotations

import hashlib

import pytest

from fastpull.errors import InvalidDigest
from fastpull.oci.digest import Digest

SHA256 = "sha256:" + "a" * 64
SHA512 = "sha512:" + "0f" * 64


@pytest.mark.parametrize("text", [SHA256, SHA512])
def test_registered_algorithms_parse_and_print_the_same(text: str) -> None:
    assert str(Digest.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sha256",
        "sha256:",
        ":" + "a" * 64,
        "sha256:" + "a" * 63,
        "sha256:" + "a" * 65,
        "sha256:" + "A" * 64,
        "sha256:" + "g" * 64,
        "sha512:" + "a" * 64,
        "md5:" + "a" * 32,
        "blake3:" + "a" * 64,
        "sha256:../../" + "a" * 58,
        "sha256:" + "a" * 32 + "/" + "a" * 31,
        SHA256 + "\n",
        " " + SHA256,
        "SHA256:" + "a" * 64,
        "sha256:" + "a" * 63 + "\0",
        "sha256:" + "٣" * 64,
    ],
)
def test_malformed_digests_are_refused(text: str) -> None:
    with pytest.raises(InvalidDigest):
        Digest.parse(text)


def test_constructor_refuses_what_parse_refuses() -> None:
    with pytest.raises(InvalidDigest):
        Digest("sha256", "../etc/passwd")
    with pytest.raises(InvalidDigest):
        Digest("..", "a" * 64)


def test_of_hashes_content_with_the_named_algorithm() -> None:
    assert Digest.of(b"x").encoded == hashlib.sha256(b"x").hexdigest()
    assert Digest.of(b"x", "sha512").encoded == hashlib.sha512(b"x").hexdigest()


def test_hasher_gives_the_digest_of_its_bytes() -> None:
    digest = Digest.of(b"hello", "sha512")
    hasher = digest.hasher()
    hasher.update(b"hello")
    assert Digest.sealed(hasher) == digest
