"""The table of cases is made of the tests, and current."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cases import AREAS, PAGE, find_cases, table, with_table


@pytest.mark.slow
def test_the_table_of_cases_is_that_of_the_tests() -> None:
    page = PAGE.read_text()
    assert page == with_table(page, table(find_cases())), "run: make cases"


@pytest.mark.slow
def test_every_area_that_is_listed_has_its_cases() -> None:
    found = find_cases()
    assert len({(case.area, case.text) for case in found}) == len(found), "a case stands there twice"
    assert {case.area for case in found} <= set(AREAS)
    assert len(found) > 60


def test_markers_become_rows(tmp_path: Path) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_x.py").write_text(
        '@pytest.mark.case("http", "b")\n@pytest.mark.case("http", "a")\n@pytest.mark.root\nasync def test_y(): ...\n'
    )
    rows = table(find_cases(tests)).splitlines()
    assert rows == [
        "### HTTP",
        "",
        "| case | test |",
        "|---|---|",
        "| a | [`test_y`](../tests/test_x.py) |",
        "| b | [`test_y`](../tests/test_x.py) |",
    ]
    for wrong in ('"nowhere", "a"', '"http"', '"http", text'):
        (tests / "test_x.py").write_text(f"@pytest.mark.case({wrong})\ndef test_y(): ...\n")
        with pytest.raises(ValueError, match="is not a case"):
            find_cases(tests)
    with pytest.raises(ValueError, match="lacks the comments"):
        with_table("# Page\n", "x")
