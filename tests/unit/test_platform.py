from __future__ import annotations

import pytest

from fastpull.errors import InvalidPlatform
from fastpull.oci.platform import Platform


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("linux/amd64", "linux/amd64"),
        ("linux/x86_64", "linux/amd64"),
        ("aarch64", "linux/arm64"),
        ("linux/arm64/v8", "linux/arm64/v8"),
        ("linux/armhf", "linux/arm/v7"),
        ("Linux/ARM/V6", "linux/arm/v6"),
        ("ppc64le", "linux/ppc64le"),
    ],
)
def test_platforms_are_normalised(text: str, expected: str) -> None:
    assert str(Platform.parse(text)) == expected


@pytest.mark.parametrize("text", ["linux", "Linux"])
def test_system_alone_means_architecture_of_this_machine(text: str) -> None:
    assert Platform.parse(text) == Platform.of_host()


def test_unknown_system_is_refused() -> None:
    assert (Platform.parse("windows").os, Platform.parse("windows").architecture) == (
        "windows",
        Platform.of_host().architecture,
    )


@pytest.mark.parametrize("text", ["", "/", "linux/", "linux/amd64/v1/x", "linux//v8", "li nux/amd64"])
def test_malformed_platforms_are_refused(text: str) -> None:
    with pytest.raises(InvalidPlatform):
        Platform.parse(text)


@pytest.mark.parametrize(
    ("wanted", "offered", "rank"),
    [
        ("linux/amd64", "linux/amd64", 0),
        ("linux/amd64", "linux/arm64", None),
        ("linux/amd64", "windows/amd64", None),
        ("linux/amd64", "linux/amd64/v2", None),
        ("linux/amd64/v3", "linux/amd64", 2),
        ("linux/amd64/v3", "linux/amd64/v3", 0),
        ("linux/arm64", "linux/arm64/v8", 0),
        ("linux/arm", "linux/arm/v7", 0),
        ("linux/arm/v7", "linux/arm/v6", 1),
        ("linux/arm/v6", "linux/arm/v7", None),
        ("linux/arm/v7", "linux/arm/v5", 2),
    ],
)
def test_older_variants_run_on_newer_ones(wanted: str, offered: str, rank: int | None) -> None:
    assert Platform.parse(wanted).rank(Platform.parse(offered)) == rank
