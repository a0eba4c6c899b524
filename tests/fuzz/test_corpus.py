"""Regression run of the kept fuzzing inputs."""

from __future__ import annotations

import pytest

from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs_pass(name: str) -> None:
    inputs = corpus.read(name)
    assert inputs
    for data in inputs:
        TARGETS[name].check(data)
