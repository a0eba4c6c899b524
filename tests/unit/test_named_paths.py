"""Paths named by make targets, continuous integration and the documents of this area."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", [".ci/run", "Makefile", "docs/testing.md", "docs/benchmarks.md"])
def test_named_test_paths_exist(name: str) -> None:
    found = set(re.findall(r"\b(?:tests|bench)/[\w./-]*\w", (ROOT / name).read_text(encoding="utf-8")))
    assert found
    assert {path for path in found if not (ROOT / path).exists()} - {"bench/pull.json", "bench/full.json"} == set()


def test_continuous_integration_calls_make_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = re.findall(r"^(?:\w+=\w+ )*make ([a-z-]+)", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(called) >= 8
    assert set(called) <= targets
