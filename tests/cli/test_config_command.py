"""``fastpull config``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fastpull.cli import main


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastpull.config.paths.SYSTEM_DIRECTORY", str(tmp_path / "etc"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_config_shows_each_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "etc/fastpull/config.toml"
    site.parent.mkdir(parents=True)
    site.write_text("connections = 5\nmemory = 67108864\n")
    monkeypatch.setenv("FASTPULL_MEMORY", "1G")
    monkeypatch.setenv("FASTPULL_CONECTIONS", "1")
    assert main(["config", "--workers", "3", "--no-sync", "--json"]) == 0
    shown, warnings = capsys.readouterr()
    found = json.loads(shown)
    assert found["connections"] == {"value": 5, "origin": f"{site}:1"}
    assert found["memory"] == {"value": 1 << 30, "origin": "FASTPULL_MEMORY"}
    assert found["workers"] == {"value": 3, "origin": "argument"}
    assert found["sync"] == {"value": False, "origin": "argument"}
    assert found["max_ratio"] == {"value": 200, "origin": "default"}
    assert warnings == "fastpull: warning: FASTPULL_CONECTIONS is not a setting (did you mean FASTPULL_CONNECTIONS?)\n"
    assert main(["config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "FROM"]
    assert ["memory", "1G", "FASTPULL_MEMORY"] in [line.split() for line in lines]


def test_invalid_config_file_fails_every_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fastpull").mkdir()
    (tmp_path / "fastpull/config.toml").write_text("# mine\nworker = 2\n")
    for arguments in (["config"], ["cache", "ls"], ["inspect", "oci:nowhere"]):
        assert main(arguments) == 3
        complaint = capsys.readouterr().err
        assert f"{tmp_path}/fastpull/config.toml:2: unknown setting (did you mean workers?): 'worker'" in complaint


def test_config_shows_origin_of_password_but_not_its_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FASTPULL_USERNAME", "me")
    monkeypatch.setenv("FASTPULL_PASSWORD", "hunter2")
    assert main(["config"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["password", "***", "FASTPULL_PASSWORD"] in lines
    arguments = ["--creds", "you:hunter3", "--insecure-registry", "a.io", "--insecure-registry", "b.io:5000"]
    assert main(["config", "--json", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["password"] == {"value": "***", "origin": "argument"}
    assert found["username"] == {"value": "you", "origin": "argument"}
    assert found["insecure_registries"] == {"value": ["a.io", "b.io:5000"], "origin": "argument"}
    assert found["authfile"] == {"value": None, "origin": "default"}


def test_config_refuses_values_out_of_range(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--memory", "1M"]) == 3
    assert "memory must be at least 16 MiB" in capsys.readouterr().err
