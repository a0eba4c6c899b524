"""``-vv``: the debug log on standard error."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from fastpull.cli.debug_log import debug_log
from fastpull.cli.main import main
from tests.support.layers import file, publish
from tests.support.processes import run
from tests.support.registry import Account, FaultyRegistry


def test_debug_lines_of_every_module_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with debug_log():
        logging.getLogger("fastpull.registry.client").debug("GET %s", "/v2/")
    logging.getLogger("fastpull.registry.client").debug("after the context")
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert not out
    assert first.startswith("debug: ")
    assert "fastpull: fastpull " in first
    assert second.endswith(" fastpull.registry.client: GET /v2/")


def test_debug_lines_of_other_packages_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with debug_log():
        capsys.readouterr()
        logging.getLogger("asyncio").debug("a line of asyncio")
    assert not capsys.readouterr().err


def test_control_characters_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    with debug_log():
        capsys.readouterr()
        logging.getLogger("fastpull").debug("a name: %s", "\x1b[2J")
    assert "\\x1b[2J" in capsys.readouterr().err


def test_the_stream_is_that_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    """The live display replaces ``sys.stderr`` after the log has begun."""
    with debug_log():
        before, sys.stderr = sys.stderr, sys.stdout
        try:
            logging.getLogger("fastpull").debug("redirected")
        finally:
            sys.stderr = before
    assert "redirected" in capsys.readouterr().out


@pytest.mark.parametrize(("flags", "expected"), [((), False), (("-v",), False), (("-vv",), True)])
async def test_only_two_v_show_the_log(
    registry: FaultyRegistry, tmp_path: Path, flags: tuple[str, ...], expected: bool
) -> None:
    reference = publish(registry, [file(b"a", b"a")])
    registry.account = Account("user", "hunter2-secret")
    ended = await run(
        "pull",
        reference,
        "-o",
        f"{tmp_path}/out/",
        *flags,
        cache=str(tmp_path / "cache"),
        FASTPULL_USERNAME="user",
        FASTPULL_PASSWORD="hunter2-secret",
    )
    assert ended.code == 0, ended.err
    assert ("debug: " in ended.err) == expected
    assert "hunter2-secret" not in ended.err
    assert "dXNlcjpodW50ZXIyLXNlY3JldA" not in ended.err  # the same in Base64
    assert all(token not in ended.err for token in registry.account.valid)


def test_the_log_ends_with_the_command(tmp_path: Path) -> None:
    main(["cache", "ls", "--cache", str(tmp_path)])
    assert not logging.getLogger("fastpull").handlers
