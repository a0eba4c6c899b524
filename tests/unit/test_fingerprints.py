"""Fingerprints: both engines number them as a list and a dict would."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastpull.native import _native
from fastpull.native.pure import fingerprints

ENGINES = [_native.Fingerprints, fingerprints.Fingerprints]


@pytest.mark.parametrize("engine", ENGINES)
@given(numbers=st.lists(st.integers(0, 400), max_size=600))
def test_find_returns_last_number_of_duplicates(engine: Any, numbers: list[int]) -> None:
    known = engine()
    items: list[bytes] = []
    last: dict[bytes, int] = {}
    for number in numbers:
        fingerprint = number.to_bytes(16, "big")
        assert known.find(fingerprint) == last.get(fingerprint, -1)
        last[fingerprint] = len(items)
        assert known.add(fingerprint) == len(items)
        items.append(fingerprint)
    assert len(known) == len(items)
    assert [known[number] for number in range(len(items))] == items


@pytest.mark.parametrize("engine", ENGINES)
def test_number_out_of_range_is_an_index_error(engine: Any) -> None:
    known = engine()
    with pytest.raises(IndexError):
        known[0]


def test_a_fingerprint_of_another_size_is_refused() -> None:
    known = _native.Fingerprints()
    with pytest.raises(ValueError, match="16 bytes"):
        known.find(b"short")


@pytest.mark.slow
def test_fingerprints_with_one_equal_half_are_all_found() -> None:
    known = _native.Fingerprints()
    items = [number.to_bytes(8, "big") + bytes(8) for number in range(50_000)]
    items += [bytes(8) + number.to_bytes(8, "big") for number in range(1, 50_000)]
    assert [known.add(item) for item in items] == list(range(len(items)))
    assert [known.find(item) for item in items] == list(range(len(items)))
