"""The metadata of a finished image."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.cache.blob_metadata import BlobMetadata
from fastpull.cache.images.store import FinishedImage, ImageKey
from fastpull.oci.digest import Digest

KEY = ImageKey(Digest.of(b"manifest"), "linux/amd64", {"compression": "zstd:1", "mtime": None, "codecs": {"a": "1"}})
IMAGE = FinishedImage(
    f"/cache/v1/images/sha256/{KEY.name}.sqsh",
    KEY,
    "docker.io/library/debian:12",
    BlobMetadata(1000, "0123456789abcdef", synced=True, boot="boot"),
    5,
    {"inodes": 3, "left_out": {"devices": 1}},
    77.0,
)


def test_the_metadata_of_an_image_reads_back() -> None:
    assert FinishedImage.from_bytes(IMAGE.to_bytes(), IMAGE.path, 77.0) == IMAGE
    mine = replace(KEY, maker=1000)
    image = replace(IMAGE, key=mine, path=IMAGE.path.replace(KEY.name, mine.name))
    assert FinishedImage.from_bytes(image.to_bytes(), image.path, 77.0) == image


@given(st.integers(0, len(IMAGE.to_bytes()) - 1), st.integers(0, 7), st.booleans())
def test_changed_or_truncated_metadata_is_refused(at: int, bit: int, is_cut: bool) -> None:
    content = bytearray(IMAGE.to_bytes())
    if is_cut:
        del content[at:]
    else:
        content[at] ^= 1 << bit
    assert FinishedImage.from_bytes(bytes(content), IMAGE.path, 77.0) is None


@pytest.mark.slow
@given(
    st.builds(
        ImageKey,
        st.binary().map(Digest.of),
        st.sampled_from(["linux/amd64", "linux/arm64/v8"]),
        st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(-(1 << 63), 1 << 63) | st.text(max_size=3)),
        st.none() | st.integers(0, 1 << 32),
    )
)
def test_the_metadata_of_one_key_does_not_serve_another(key: ImageKey) -> None:
    """Every key has its own name, so a renamed file is refused."""
    path = f"/cache/{key.name}.sqsh"
    assert "/" not in key.name
    found = FinishedImage.from_bytes(replace(IMAGE, key=key).to_bytes(), path, 0)
    assert found is not None
    assert found.key == key
    assert (FinishedImage.from_bytes(IMAGE.to_bytes(), path, 0) is None) == (key != KEY)


def test_the_order_of_a_recipe_does_not_matter() -> None:
    backwards = dict(reversed(list(KEY.recipe.items())))
    assert replace(KEY, recipe=backwards).name == KEY.name
