from __future__ import annotations

import re
from enum import IntEnum, IntFlag
from pathlib import Path

import pytest

import fastpull
from fastpull.layers.entry import EntryType
from fastpull.layers.faults import LAYER_FAULTS, LIMITS, REASONS, Fault
from fastpull.native.codes import CutResult, Placement, SpanFlag

SOURCES = Path(fastpull.__file__).parent.parent / "native"


def native_constants(prefix: str) -> dict[str, int]:
    """The constants of the native sources whose names begin with a prefix."""
    text = "\n".join(path.read_text() for path in sorted(SOURCES.glob("*.pxi")))
    return {name: int(value) for name, value in re.findall(rf"^    {prefix}_(\w+) = (\d+)\b", text, re.MULTILINE)}


@pytest.mark.parametrize(
    ("prefix", "codes"),
    [("TYPE", EntryType), ("FAULT", Fault), ("SPAN", SpanFlag), ("PLACE", Placement), ("CUT", CutResult)],
)
def test_codes_in_python_equal_those_of_the_native_module(prefix: str, codes: type[IntEnum | IntFlag]) -> None:
    assert {code.name: code.value for code in codes} == native_constants(prefix)


def test_every_fault_has_a_reason() -> None:
    assert set(REASONS) == set(Fault) - {Fault.NONE, Fault.MEMORY}
    assert set(REASONS) >= LAYER_FAULTS | set(LIMITS)


def test_every_part_of_the_native_module_is_included_and_listed() -> None:
    module = (SOURCES / "_native.pyx").read_text()
    parts = {path.name for path in SOURCES.glob("*.pxi")}
    assert set(re.findall(r'^include "(.*)"$', module, re.MULTILINE)) == parts
    assert all(f"    {part} " in module for part in parts)
