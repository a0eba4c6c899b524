"""Small files of a cache, including hostile ones."""

from __future__ import annotations

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from fastpull.cache import checksummed_json as line

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 63) | st.floats(-1e15, 1e15) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def forged(text: str) -> bytes:
    first = text.encode() + b"\n"
    return first + xxhash.xxh3_64_hexdigest(first).encode() + b"\n"


@given(VALUES)
def test_a_value_reads_back(value: object) -> None:
    assert line.from_bytes(line.to_bytes(value)) == value


@pytest.mark.parametrize(
    "text",
    ["NaN", "Infinity", "-Infinity", "1e400", "1e300", "9" * 30, "1" * 10_000, r'"\ud800"', r'{"\udfff": 1}', "", "{"],
)
def test_values_that_fastpull_never_writes_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # any message
        line.from_bytes(forged(text))


@pytest.mark.parametrize("depth", [1_000, 100_000, 400_000])
def test_endless_nesting_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="deep"):
        line.from_bytes(forged("[" * depth + "]" * depth))


@given(st.binary())
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        line.from_bytes(content)
