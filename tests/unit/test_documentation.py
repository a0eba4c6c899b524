"""The documentation: its commands, names, links and tables match the code."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

import fastpull
import fastpull.errors
import fastpull.telemetry.events
from fastpull.cli.main import make_parser
from fastpull.telemetry.events import Event

ROOT = Path(fastpull.__file__).parents[1]
PACKAGES = ["cache", "cluster", "config", "oci", "pipeline", "registry", "runtimes", "sinks", "telemetry"]
FACES = [*PACKAGES, "errors", "progress"]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def assert_understood(line: str) -> None:
    command = re.split(r"\s{2,}\S|\s#\s| \||\)", line)[0]  # without what follows it
    try:
        make_parser().parse_args(shlex.split(command)[1:])
    except SystemExit as error:
        assert error.code == 0, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_commands_parse(page: Path) -> None:
    for block in blocks(page, "sh"):
        for line in block.splitlines():
            if line.startswith("fastpull "):
                assert_understood(line)


def test_help_examples_of_all_parsers_parse() -> None:
    examples = [
        line.strip()
        for parser in parsers(make_parser())
        for line in (parser.epilog or "").splitlines()
        if line.startswith("  fastpull ")
    ]
    assert len(examples) > 15
    for line in examples:
        assert_understood(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documented_python_uses_public_names(page: Path) -> None:
    for block in blocks(page, "python"):
        if not re.match(r"try:", block):  # an excerpt from within a coroutine
            compile(block, str(page), "exec")
        for name, inner in re.findall(r"\bfastpull\.(\w+)(?:\.(\w+))?", block):
            if name in FACES:
                assert not inner or inner in getattr(fastpull, name).__all__, (name, inner)
            else:
                assert name in fastpull.__all__, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documentation_links_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def test_documented_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"\bmake ([a-z-]+)\b(?= |$|`)", "".join(blocks(page, "sh")), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_threat_model_names_existing_tests() -> None:
    page = (ROOT / "docs/threat-model.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    there = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert len(named) > 20
    assert not named - there


def test_threat_model_lists_all_limits() -> None:
    page = (ROOT / "docs/threat-model.md").read_text()
    assert set(re.findall(r"`FASTPULL_(MAX_\w+)`", page)) == {
        field.name.upper() for field in fields(fastpull.config.Limits)
    }


def test_documented_settings_table_matches_the_code() -> None:
    lines = ["| in TOML | variable | flag | default | what it is |", "|---|---|---|---|---|"]
    for one in fastpull.config.SETTINGS.values():
        name = "" if one.kind.is_secret else f"`{one.name}`"
        flag = f"`{one.flag} {one.kind.metavar}`".replace(" `", "`") if one.flag else ""
        lines.append(f"| {name} | `{one.variable}` | {flag} | {one.shown_default} | {one.text} |")
    page = (ROOT / "docs/configuration.md").read_text()
    expected = "\n".join(lines)
    assert expected in page, f"the table in docs/configuration.md has to be:\n{expected}"


def test_documented_configuration_loads(tmp_path: Path) -> None:
    found = blocks(ROOT / "docs/configuration.md", "toml")
    assert found
    for number, block in enumerate(found):
        path = tmp_path / f"{number}/fastpull/config.toml"
        path.parent.mkdir(parents=True)
        path.write_text(block)
        fastpull.Settings.load({"XDG_CONFIG_HOME": str(path.parents[1])})


def test_library_page_lists_all_public_names() -> None:
    page = (ROOT / "docs/library.md").read_text()
    words = set(re.findall(r"\w+", page))
    events = {event.__name__ for event in get_args(Event)}
    public = {*fastpull.__all__, *events, *(name for face in FACES for name in getattr(fastpull, face).__all__)}
    public -= {"__version__", "ignore", "NOTICED_SECONDS", "OnEvent", "Event"}
    assert not public - words
    for name in events:
        row = re.search(rf"^\| `{name}` \|.*\|([^|]*)\|$", page, re.MULTILINE)
        assert row is not None, name
        event = getattr(fastpull.telemetry.events, name)
        assert re.findall(r"`(\w+)`", row[1]) == [field.name for field in fields(event)]


def test_library_page_lists_all_errors() -> None:
    page = (ROOT / "docs/library.md").read_text()
    named = set(re.findall(r"`(\w+)`", page.partition("## Errors")[2].partition("## A runtime")[0]))
    assert set(fastpull.errors.__all__) - {"FastpullError"} <= named


@pytest.mark.parametrize("name", ["run.py", "warm_service.py"])
def test_library_page_contains_the_examples(name: str) -> None:
    assert (ROOT / "examples" / name).read_text() in blocks(ROOT / "docs/library.md", "python")
