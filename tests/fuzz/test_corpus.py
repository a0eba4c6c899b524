"""What fuzzing has found once is run each time; a planted fault is found."""

from __future__ import annotations

import pytest

from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_holds(name: str) -> None:
    inputs = corpus.read(name)
    assert inputs
    for data in inputs:
        TARGETS[name].check(data)
