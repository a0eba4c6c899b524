"""Forms of names and options on the command line and in the library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fastpull
from fastpull.cli.main import main
from fastpull.cli.warm_cmd import _read
from fastpull.config.settings import Settings
from fastpull.errors import InvalidDigest
from tests.support.layers import file, publish
from tests.support.processes import run
from tests.support.registry import FaultyRegistry, status

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["pul", "debian"], "did you mean pull?"),
        (["inspct", "debian"], "did you mean inspect?"),
        (["cache", "lst"], "did you mean ls?"),
        (["cache", "verifi"], "did you mean verify?"),
        (["pull", "debian", "--for", "enrot"], "did you mean enroot?"),
        (["nothing"], "choose from pull, warm"),
    ],
)
def test_misspelt_choice_suggests_the_likely_one(
    arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 3
    assert meant in capsys.readouterr().err


def test_lists_of_sources_skip_comments(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(
        "# all of them\ndebian:12  # the base\n\tnvcr.io#nvidia/pytorch:24.01-py3\t#ours\n\n   # none\noci:a#b\n#c\n"
    )
    assert _read(f"{tmp_path}/list") == ["debian:12", "nvcr.io#nvidia/pytorch:24.01-py3", "oci:a#b"]


async def test_cache_rm_takes_short_digests_of_cache_ls(registry: FaultyRegistry, settings: Settings) -> None:
    reference = publish(registry, [file("a", os.urandom(100_000))])
    await run("warm", reference, cache=settings.cache)
    [line] = (await run("cache", "ls", cache=settings.cache)).out.splitlines()[1:]
    short = next(word for word in line.split() if len(word) == 12 and not set(word) - set("0123456789abcdef"))
    dry = await run("cache", "rm", "-n", short, cache=settings.cache)
    assert (dry.code, f"sha256:{short}" in dry.out) == (0, True), dry.err
    blobs = json.loads((await run("cache", "ls", "--blobs", "--json", cache=settings.cache)).out)
    for number, blob in enumerate(blobs):
        digits = blob["digest"].removeprefix("sha256:")
        name = (f"sha256:{digits[:20]}", digits, digits[:6])[number]
        removed = await run("cache", "rm", name, cache=settings.cache)
        assert (removed.code, blob["digest"] in removed.out) == (0, True), removed.err
    for name in (short, f"sha256:{short}", blobs[0]["digest"]):
        assert (await run("cache", "rm", name, cache=settings.cache)).code == 11


def test_ambiguous_short_digest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastpull.cache.store import Store  # noqa: PLC0415

    store = Store(f"{tmp_path}/cache")
    cache = fastpull.cache.CacheManager(f"{tmp_path}/cache")
    same = [fastpull.Digest("sha256", "abcdef" + digit * 58) for digit in "01"]
    monkeypatch.setattr(type(store), "blobs", lambda _: [fastpull.cache.StoredBlob(one, 1, 0.0) for one in same])
    with pytest.raises(InvalidDigest, match="2 digests in the cache begin like this"):
        cache.remove("sha256:abcdef", dry_run=True)


@pytest.mark.parametrize("action", [("gc", "--max-size", "0"), ("verify",)])
async def test_quiet_cache_verbs_print_nothing(
    action: tuple[str, ...], registry: FaultyRegistry, settings: Settings
) -> None:
    await run("warm", publish(registry, [file("a")]), cache=settings.cache)
    ended = await run("cache", *action, "-q", cache=settings.cache)
    assert (ended.code, ended.out, ended.err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compression", "brotli"], "brotli"),
        (["--compression", "zstd:99"], "zstd"),
        (["--block-size", "5000"], "power of two"),
        (["--registries-conf", "/no/such/file"], "/no/such/file"),
        (["--policy", "/no/such/file"], "/no/such/file"),
        (["--authfile", "/no/such/file"], "/no/such/file"),
        (["--cert-dir", "/no/such/folder"], "/no/such/folder"),
        (["--registry", "https://quay.io"], "HOST[:PORT]"),
        (["--private-host", "a b"], "HOST[:PORT]"),
        (["--insecure-registry", "a.io,b.io/x"], "HOST[:PORT]"),
    ],
)
def test_config_refuses_values_that_a_pull_refuses(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", *arguments]) == 3
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.out == ""


async def test_inspect_shows_mirror_warnings(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    reference = publish(registry, [file("a")])
    (tmp_path / "registries.conf").write_text(
        f'[[registry]]\nlocation = "{registry.address}"\n[[registry.mirror]]\nlocation = "127.0.0.1:1/none"\n'
    )
    ended = await run("inspect", reference, "--registries-conf", tmp_path / "registries.conf", cache=settings.cache)
    assert ended.code == 0, ended.err
    assert "127.0.0.1:1" in ended.err
    assert ended.err.startswith("warning: ")


async def test_control_characters_of_images_and_registries_are_escaped(
    registry: FaultyRegistry, settings: Settings
) -> None:
    hostile = "\x1b]0;owned\x07\nDigest: none\r\u202e"
    config: dict[str, Any] = {
        "Env": [f"A={hostile}"],
        "User": hostile,
        "WorkingDir": f"/{hostile}",
        "Labels": {hostile: hostile},
    }
    reference = publish(registry, [file("a")], config=config)
    shown = await run("inspect", reference, cache=settings.cache)
    assert shown.code == 0, shown.err
    assert all(line.isprintable() for line in (shown.out + shown.err).splitlines())
    assert sum(line.startswith("Digest:") for line in shown.out.splitlines()) == 1
    registry.faults.append(status(500, X_Reason=hostile.encode("unicode_escape").decode()))
    failed = await run("inspect", reference, cache=settings.cache)
    assert all(line.isprintable() for line in failed.err.splitlines())


async def test_dir_lists_public_names_and_warm_takes_one_source(registry: FaultyRegistry, settings: Settings) -> None:
    assert set(fastpull.__all__) <= set(dir(fastpull))
    reference = publish(registry, [file("a")])
    async with fastpull.Client(settings) as client:
        [report] = await client.warm(reference)
    assert (report.source, report.error) == (reference, None)


async def test_closed_client_raises_clear_error(settings: Settings, tmp_path: Path) -> None:
    client = fastpull.Client(settings)
    for _ in range(2):
        for call in (
            client.resolve("debian"),
            client.pull("debian", tmp_path / "out"),
            client.ensure_squashfs("debian"),
            client.warm("debian"),
        ):
            with pytest.raises(RuntimeError, match="async with"):
                await call
        async with client:
            pass


def test_runtime_example_prints_usage() -> None:
    ended = subprocess.run([sys.executable, ROOT / "examples/run.py"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.startswith("usage: run.py IMAGE")) == (2, True)
