"""Environment definition files: their image, and their errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fastpull
from fastpull.errors import InvalidSetting
from fastpull.runtimes.edf import EnvironmentFile
from tests.support.layers import file, publish
from tests.support.processes import run
from tests.support.registry import FaultyRegistry


@pytest.fixture
def edf(tmp_path: Path) -> Path:
    (tmp_path / "edf").mkdir()
    return tmp_path / "edf"


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)


def load(folder: Path, name: str, **environment: str) -> EnvironmentFile:
    return EnvironmentFile.load(name, {"EDF_PATH": f"{folder.parent}/nowhere:{folder}", **environment})


IMAGES = {
    'image = "ubuntu:24.04"': "ubuntu:24.04",
    'image = "nvcr.io#nvidia/pytorch:24.01-py3"': "nvcr.io#nvidia/pytorch:24.01-py3",
    'image = "${REGISTRY}/team/${NAME}:v1"': "registry.example.org/team/app:v1",
    'image = "$NAME"': "$NAME",
    "": "",
    'base_environment = ""\nimage = "a"': "a",
    'base_environment = "base"': "base:1",
    'base_environment = ["base", "second"]': "second:2",
    'base_environment = ["second", "base"]': "base:1",
    'base_environment = "base"\nimage = "own:3"': "own:3",
    'base_environment = "deep"': "base:1",
}


@pytest.mark.parametrize("text", IMAGES)
def test_image_of_environment_is_expanded(edf: Path, text: str) -> None:
    write(edf, it=text, base='image = "base:1"', second='image = "second:2"', deep='base_environment = "base"')
    assert load(edf, "it", REGISTRY="registry.example.org", NAME="app").image == IMAGES[text]


@pytest.mark.parametrize(
    ("image", "path"),
    [
        ("/images/a.sqsh", "/images/a.sqsh"),
        ("./a.sqsh", "./a.sqsh"),
        ("a.sqsh", "a.sqsh"),
        ("${DIR}/a.squashfs", "/scratch/a.squashfs"),
        ("/images/any-name", "/images/any-name"),
        ("debian:12", None),
        ("docker://debian:12", None),
    ],
)
def test_image_that_is_a_file_has_path(edf: Path, image: str, path: str | None) -> None:
    write(edf, it=f'image = "{image}"')
    assert load(edf, "it", DIR="/scratch").image_file == path


def test_other_keys_are_kept_and_merged(edf: Path) -> None:
    write(
        edf,
        base='workdir = "/w"\nmounts = ["/a:/a"]\nwritable = false\n[env]\nA = "1"\nB = "2"',
        it='base_environment = "base"\nmounts = ["/b:/b"]\nwritable = true\n[env]\nB = "3"\n[anotations]\nx = "y"',
    )
    found = load(edf, "it")
    assert found.others == {
        "workdir": "/w",
        "mounts": ["/a:/a", "/b:/b"],
        "writable": True,
        "env": {"A": "1", "B": "3"},
        "anotations": {"x": "y"},
    }
    assert found.unknown == ("anotations",)
    assert [Path(path).name for path in found.inherited] == ["base.toml"]


def test_environments_are_found_in_search_path(edf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    (home / ".edf").mkdir(parents=True)
    write(home / ".edf", mine='image = "home:1"')
    write(edf, mine='image = "path:1"')
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / ".edf")
    assert EnvironmentFile.load("mine", {}).image == "home:1"
    assert EnvironmentFile.load("mine", {"EDF_PATH": f"/nowhere:{edf}"}).image == "path:1"
    assert EnvironmentFile.load("mine.toml", {"EDF_PATH": str(edf)}).image == "home:1"
    assert EnvironmentFile.load(str(edf / "mine.toml"), {}).image == "path:1"
    assert EnvironmentFile.load("~/.edf/mine.toml", {}).image == "home:1"


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "itself": ({"it": 'base_environment = "it"'}, "form a loop"),
    "a circle": ({"it": 'base_environment = "b"', "b": 'base_environment = ["it"]'}, "form a loop"),
    "eleven deep": (
        {"it": 'base_environment = "e0"'}
        | {f"e{n}": f'base_environment = "e{n + 1}"' for n in range(12)}
        | {"e12": ""},
        "more than 10 deep",
    ),
    "a bomb": (
        {"it": 'base_environment = ["e0", "e0"]', "e9": ""}
        | {f"e{number}": f"base_environment = {[f'e{number + 1}'] * 9}" for number in range(9)},
        "more than 256 base environments",
    ),
    "no such base": ({"it": 'base_environment = "gone"'}, "no such environment"),
    "no such file": ({"it": 'base_environment = "./gone.toml"'}, "no such environment file"),
    "no toml": ({"it": "image = "}, "cannot be read"),
    "deep toml": ({"it": "image = " + "[" * 5000}, "cannot be read"),
    "a number": ({"it": "image = 5"}, "has to be a string"),
    "a table": ({"it": "[base_environment]"}, "a string or a list of strings"),
    "numbers": ({"it": "base_environment = [1]"}, "a string or a list of strings"),
    "not set": ({"it": 'image = "${GONE}"'}, "not set"),
    "no variable": ({"it": 'image = "${a b}"'}, "not set"),
    "too large": ({"it": "#" * (2 << 20)}, "an environment file has at most"),
    "nothing": ({}, "no such environment"),
}


@pytest.mark.parametrize("name", WRONG)
def test_error_describes_invalid_environment(edf: Path, name: str) -> None:
    files, words = WRONG[name]
    write(edf, **files)
    with pytest.raises(InvalidSetting, match=words):
        load(edf, "it")


def test_shared_base_environment_is_no_loop(edf: Path) -> None:
    write(
        edf, it='base_environment = ["l", "r"]', l='base_environment = "b"', r='base_environment = "b"', b='image = "b"'
    )
    assert load(edf, "it").image == "b"


async def test_warm_and_pull_accept_environments(registry: FaultyRegistry, edf: Path, tmp_path: Path) -> None:
    reference = publish(registry, [file("a", b"1")], name="team/app")
    image = tmp_path / "there.sqsh"
    image.write_bytes(b"")
    write(
        edf,
        one='image = "${WHERE}/team/app:v1"\nworkdir = "/w"\ntypo = 1',
        two=f'image = "{image}"',
        three='workdir = "/"',
        gone='image = "/no/such.sqsh"',
    )
    settings: dict[str, Any] = {"EDF_PATH": str(edf), "WHERE": registry.address}
    cache = str(tmp_path / "cache")
    warmed = await run("warm", "--edf", "one", edf / "two.toml", "three", "-v", cache=cache, **settings)
    assert warmed.code == 0, warmed.err
    assert warmed.out.split()[1:] == [reference]
    assert "unknown to the container engine: typo" in warmed.err
    assert "left to the container engine: workdir" in warmed.err
    pulled = await run("pull", "--edf", "one", "-o", tmp_path / "out", "--json", cache=cache, **settings)
    assert pulled.code == 0, pulled.err
    assert json.loads(pulled.out.splitlines()[-1])["event"] == "result"
    assert (tmp_path / "out/a").read_bytes() == b"1"
    for arguments, words in (
        (["pull", "--edf", "two"], "nothing to pull"),
        (["pull", "--edf", "three"], "no image"),
        (["pull", "--edf", "gone"], "does not exist"),
        (["warm", "--edf", "gone"], "does not exist"),
        (["pull", "--edf", "one", reference], "not allowed with"),
    ):
        ended = await run(*arguments, cache=cache, **settings)
        assert (ended.code, words in ended.err) == (3, True), ended.err


def test_library_loads_environments(edf: Path) -> None:
    write(edf, it='image = "debian:12"')
    assert fastpull.runtimes.EnvironmentFile.load(str(edf / "it.toml"), {}).image == "debian:12"
