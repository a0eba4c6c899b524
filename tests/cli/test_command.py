"""The command line: arguments, output and exit codes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import fastpull
from fastpull.cache.store import Store
from fastpull.cli.arguments import settings_of
from fastpull.cli.main import main, make_parser
from fastpull.cli.pull_cmd import _default_output
from fastpull.cli.words import age_of, size_of
from fastpull.config.settings import Settings
from tests.support.layers import file, publish
from tests.support.logins import login, write
from tests.support.processes import kill, run, start
from tests.support.registry import FaultyRegistry, corrupted
from tests.support.trees import names

# --- help


def parsers() -> list[str]:
    return [
        "",
        "pull",
        "warm",
        "inspect",
        "cache",
        "cache ls",
        "cache du",
        "cache gc",
        "cache verify",
        "cache rm",
        "importer",
        "importer get",
        "importer release",
        "demo",
    ]


@pytest.mark.parametrize("verb", parsers())
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*verb.split(), "--help"])
    assert ended.value.code == 0
    words = capsys.readouterr().out
    assert words.startswith("usage: fastpull")
    if not verb.startswith(("cache ", "importer ")):
        assert "examples:\n  fastpull" in words


def test_help_examples_parse() -> None:
    for verb in ("", "pull", "warm", "inspect", "cache", "importer", "demo"):
        parser = make_parser()
        epilog = str(parser.epilog)
        if verb:
            choices = parser._subparsers._group_actions[0].choices  # type: ignore[union-attr]
            epilog = str(choices[verb].epilog)  # type: ignore[index]
        for line in re.findall(r"^  (?:digest=\$\()?fastpull (.*?)(?:\)| {3,}.*| \|.*)?$", epilog, re.MULTILINE):
            make_parser().parse_args(line.split())


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"fastpull {fastpull.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nothing"],
        ["pull"],
        ["pull", "debian", "-o", "x", "--no-such"],
        ["pull", "debian", "-o", "x", "--owner", "him"],
        ["pull", "debian", "-o", "x", "--json", "--quiet"],
        ["pull", "debian", "-o", "x", "--format", "zip"],
        ["cache"],
        ["cache", "rm"],
        ["importer"],
        ["importer", "get"],
        ["importer", "release", "x"],
    ],
)
def test_wrong_command_line_is_invalid_input(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 3
    assert "usage: fastpull" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pull", "UPPER", "-o", "x"], "lower case"),
        (["pull", "debian", "-o", "x", "--platform", "a/b/c/d"], "platform"),
        (["pull", "debian", "-o", "x", "--memory", "lots"], "memory"),
        (["pull", "debian", "-o", "x", "--workers", "0"], "workers"),
        (["pull", "debian", "-o", "image.sqsh", "--compression", "brotli"], "zstd"),
        (["pull", "debian", "-o", "image.sqsh", "--block-size", "5000"], "power of two"),
        (["pull", "debian", "-o", "image.sqsh", "--mtime", "-1"], "1970"),
        (["pull", "debian", "-o", "image.sqsh", "--owner", "me"], "no meaning for a squashfs output"),
        (["pull", "debian", "-o", "x/", "--no-fragments"], "no meaning for a dir output"),
        (["pull", "debian", "-o", "-", "--format", "squashfs"], "standard output"),
        (["pull", "debian", "--format", "dir"], "-o"),
        (["pull", "debian", "-o", "image.tar", "--owner", "keep"], "owner has no meaning"),
        (["pull", "debian", "-o", "x/", "--format", "tar"], "cannot end in '/'"),
        (["pull", "debian", "-o", "-", "--format", "dir"], "standard output"),
        (["pull", "debian", "-o", "-", "--json"], "--json"),
        (["pull", "dir:x", "-o", "x"], "unknown scheme"),
        (["pull", "oci:", "-o", "x"], "an empty part in an oci: source"),
        (["warm"], "no source"),
        (["warm", "debian", "--jobs", "0"], "jobs"),
        (["warm", "-f", "/no/such/file"], "/no/such/file"),
        (["cache", "gc", "--max-size", "big"], "size"),
        (["cache", "gc", "--max-age", "old"], "age"),
        (["cache", "rm", "sha256:short"], "digest"),
    ],
)
def test_errors_name_invalid_values(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FASTPULL_CACHE", str(tmp_path / "cache"))
    Store(str(tmp_path / "cache"))
    assert main(arguments) == 3
    shown = capsys.readouterr().err
    assert words in shown
    assert "fastpull: error: " in shown
    assert "Traceback" not in shown


# --- pull


async def test_pull_prints_digest_to_stdout_and_the_rest_to_stderr(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, [file("a", b"x" * 5000)], [file("b")])
    ended = await run("pull", f"docker://{reference}", "-o", f"{tmp_path}/out/", cache=settings.cache)
    assert ended.code == 0
    assert re.fullmatch(r"sha256:[0-9a-f]{64}\n", ended.out)
    assert f"{reference}: {ended.out.strip()} linux/amd64, 2 layers" in ended.err
    assert re.search(rf"{tmp_path}/out: 3 inodes, .* in \d+\.\d s", ended.err)
    assert names(tmp_path / "out") == {"a", "b"}
    other = publish(registry, [file("other")], tag="v2")
    again = await run("pull", other, "-o", tmp_path / "out", cache=settings.cache)
    assert again.code == 31
    assert f"another image ({ended.out.strip()}) is there" in again.err
    assert "--force" in again.err
    forced = await run("pull", "-q", reference, "-o", tmp_path / "out", "--force", cache=settings.cache)
    assert (forced.code, forced.out, forced.err) == (0, ended.out, "")


async def test_json_output_holds_all_events(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    reference = publish(registry, [file("a", b"x" * 5000)])
    ended = await run("pull", "--json", reference, "-o", tmp_path / "out", cache=settings.cache)
    events = [json.loads(line) for line in ended.out.splitlines()]
    assert [event["event"] for event in events if event["event"] != "layer_progress"] == [
        "resolved",
        "layer_done",
        "committing",
        "result",
    ]
    assert events[0]["image"]["source"] == reference
    assert events[-1]["output"]["inodes"] == 2
    assert ended.err == ""


async def test_failure_is_printed_as_text_and_as_event(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, [file("a", os.urandom(5000))])
    registry.faults.append(corrupted())
    ended = await run("pull", "--json", reference, "-o", tmp_path / "out", cache=settings.cache)
    event = json.loads(ended.out.splitlines()[-1])
    assert (ended.code, event["event"], event["type"], event["exit_code"]) == (20, "error", "DigestMismatch", 20)
    assert event["message"] in ended.err
    assert not (tmp_path / "out").exists()


async def test_pull_prints_bottleneck_and_writes_trace(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference, trace = publish(registry, [file("a", b"x" * 5000)]), tmp_path / "trace.json"
    ended = await run("pull", reference, "-o", f"{tmp_path}/out/", "--trace", trace, cache=settings.cache)
    assert ended.code == 0, ended.err
    assert re.search(r"^most time went to [a-z ]+ \(\d+% of .* s.*\)$", ended.err, re.MULTILINE)
    assert json.loads(trace.read_text())["traceEvents"]
    told = await run("pull", "--json", reference, "-o", f"{tmp_path}/again/", cache=settings.cache)
    result = json.loads(told.out.splitlines()[-1])
    assert result["bottleneck"]["stage"] in result["stages"]
    assert result["stages"]["inflating"]["cpu_seconds"] >= 0


async def test_failed_pull_writes_trace_without_secrets(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference, trace = publish(registry, [file("a", os.urandom(5000))]), tmp_path / "trace.json"
    registry.faults.append(corrupted())
    ended = await run("pull", reference, "-o", tmp_path / "out", "--trace", trace, cache=settings.cache)
    assert ended.code == 20
    shown = trace.read_text()
    assert "downloading" in shown
    assert registry.address not in shown
    assert not (tmp_path / "out").exists()


async def test_interrupted_pull_writes_trace(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    reference, trace, asked = publish(registry, [file("a", b"x" * 5000)]), tmp_path / "trace.json", asyncio.Event()

    async def never(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    registry.faults.append(never)
    process = await start("pull", reference, "-o", tmp_path / "out", "--trace", trace, cache=settings.cache)
    await asyncio.wait_for(asked.wait(), 30)
    assert (await kill(process, signal.SIGINT)).code == 130
    assert "reading and verifying" in trace.read_text()
    assert sorted(os.listdir(tmp_path)) == ["cache", "trace.json"]


@pytest.mark.parametrize(
    ("trace", "code", "words"),
    [
        ("no/such/trace.json", 31, "no such directory"),
        ("", 3, "path of a file"),
        ("-", 3, "path of a file"),
        ("out/trace.json", 3, "choose another file"),
        ("out", 3, "choose another file"),
    ],
)
def test_invalid_trace_path_is_refused_before_the_pull(
    trace: str,
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["pull", "localhost:1/no/such", "-o", "out/", "--trace", trace, "--cache", "cache"]) == code
    assert words in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


async def test_pull_writes_tar(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    reference = publish(registry, [file("a", b"x" * 5000)], [file("b")])
    out = tmp_path / "image.tar"
    ended = await run("pull", reference, "-o", out, cache=settings.cache)
    assert ended.code == 0, ended.err
    assert re.fullmatch(r"sha256:[0-9a-f]{64}\n", ended.out)
    assert f"{out}: 3 inodes" in ended.err
    with tarfile.open(out) as opened:
        assert opened.getnames() == ["a", "b"]
    content = out.read_bytes()
    again = await run("pull", reference, "-o", out, "--mtime", "1", cache=settings.cache)
    assert (again.code, "this image, made in another way, is there" in again.err) == (31, True)
    forced = await run("pull", reference, "-o", out, "--force", cache=settings.cache)
    assert (forced.code, out.read_bytes() == content) == (0, True)
    named = await run("pull", reference, "-o", tmp_path / "other", "--format", "tar", cache=settings.cache)
    assert (named.code, (tmp_path / "other").read_bytes() == content) == (0, True)
    assert sorted(os.listdir(tmp_path)) == ["cache", "image.tar", "other"]


@pytest.mark.parametrize("quiet", [(), ("-q",)])
async def test_stdout_holds_only_the_tar(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, quiet: tuple[str, ...]
) -> None:
    reference = publish(registry, [file("a", os.urandom(3_000_000))])
    process = await start("pull", reference, "-o", "-", *quiet, cache=settings.cache, TMPDIR=str(tmp_path))
    out, err = await process.communicate()
    assert process.returncode == 0, err
    with tarfile.open(fileobj=io.BytesIO(out)) as opened:
        assert opened.getnames() == ["a"]
    assert re.search(r"^sha256:[0-9a-f]{64}\n\Z", err.decode(), re.MULTILINE)
    assert (len(err.splitlines()) == 1) == bool(quiet)
    assert os.listdir(tmp_path) == ["cache"]


async def test_failed_pull_writes_nothing_to_stdout(registry: FaultyRegistry, settings: Settings) -> None:
    reference = publish(registry, [file("a", os.urandom(5000))])
    registry.faults.append(corrupted())
    ended = await run("pull", reference, "-o", "-", cache=settings.cache)
    assert (ended.code, ended.out) == (20, "")


async def test_closed_pipe_of_a_tar_is_an_output_error(registry: FaultyRegistry, settings: Settings) -> None:
    reference = publish(registry, [file("a", os.urandom(3_000_000))])
    reader, writer = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fastpull", "pull", reference, "-o", "-", stdout=writer, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "FASTPULL_CACHE": settings.cache},
    )  # fmt: skip
    os.close(writer)
    await asyncio.to_thread(os.read, reader, 1000)
    os.close(reader)
    _, err = await process.communicate()
    assert process.returncode == 31
    assert b"fastpull: error: output: broken pipe: standard output" in err
    assert b"Traceback" not in err


def test_tar_to_a_terminal_is_refused(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    ended = subprocess.run(
        [sys.executable, "-m", "fastpull", "pull", "debian", "-o", "-", "--cache", tmp_path / "cache"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(ours)
    os.close(theirs)
    assert (ended.returncode, "redirect" in ended.stderr) == (3, True)


async def test_environment_sets_settings(registry: FaultyRegistry, tmp_path: Path) -> None:
    reference = publish(registry, [file("a")])
    ended = await run("pull", reference, "-o", tmp_path / "out", cache=f"{tmp_path}/c", FASTPULL_WORKERS="x")
    assert (ended.code, "workers" in ended.err) == (3, True)


def test_terminal_shows_a_line_for_each_layer(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm", "COLUMNS": "100", "LINES": "40"})
        os.execv(
            sys.executable,
            [
                sys.executable,
                "-c",
                "import sys; from fastpull.cli import main; sys.exit(main())",
                "demo",
                "--size",
                "8",
            ],
        )
    shown = b""
    try:
        while piece := os.read(terminal, 65536):
            shown += piece
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode()
    assert re.search(r"[0-9a-f]{12} \[[#=-]{24}\]  .* of .* MiB", text), "digest, bar and sizes"
    assert re.search(r"\d+%  .* of .* [KM]iB unpacked", text), "the total"
    assert "all correct" in text


def test_demo_removes_first_tree_outside_the_measured_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, pull = [], fastpull.Client.pull

    async def look_and_pull(client: fastpull.Client, *args: Any, **options: Any) -> fastpull.PullReport:
        found.append((tmp_path / "out").exists())
        return await pull(client, *args, **options)

    monkeypatch.setattr(fastpull.Client, "pull", look_and_pull)
    assert main(["demo", "-q", "--size", "1", "-o", str(tmp_path / "out")]) == 0
    assert found == [False, False]
    assert (tmp_path / "out").is_dir()


def test_demo_keeps_foreign_directories(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").touch()
    assert main(["demo", "-q", "--size", "1", "-o", str(tmp_path / "out")]) == 31
    assert names(tmp_path / "out") == {"mine"}


# --- warm, inspect, cache


async def test_warm_reads_lists_and_continues_after_failures(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    references = [publish(registry, [file("a", b"%d" % n)], name=f"image/n{n}") for n in range(3)]
    (tmp_path / "list").write_text(f"# images\n{references[1]}\n\n  {references[2]}  \n")
    ended = await run("warm", references[0], "-f", tmp_path / "list", "--jobs", "2", cache=settings.cache)
    assert ended.code == 0
    assert [line.split()[1] for line in ended.out.splitlines()] == references
    bad = f"{registry.address}/image/none:v1"
    failed = await run("warm", "--json", bad, references[0], cache=settings.cache)
    assert failed.code == 11
    events = [json.loads(line)["event"] for line in failed.out.splitlines()]
    assert events[-2:] == ["error", "result"]


async def test_inspect_shows_manifest_config_and_layers(registry: FaultyRegistry, settings: Settings) -> None:
    reference = publish(registry, [file("a")], config={"Env": ["A=b"], "Entrypoint": ["/bin/x"], "Labels": {"k": "v"}})
    plain = await run("inspect", reference, cache=settings.cache)
    assert all(word in plain.out for word in (reference, "linux/amd64", "A=b", "'/bin/x'", "k=v", "sha256:"))
    as_json = json.loads((await run("inspect", "--json", reference, cache=settings.cache)).out)
    assert as_json["config"]["env"] == ["A=b"]
    assert (await run("inspect", "-q", reference, cache=settings.cache)).out == plain.out
    raw = (await run("inspect", "--raw", reference, cache=settings.cache)).out
    assert raw.encode() == registry.manifests["test/image", "v1"][1]
    assert str(fastpull.Digest.of(raw.encode())) == as_json["digest"]
    config = (await run("inspect", "--config", reference, cache=settings.cache)).out
    assert str(fastpull.Digest.of(config.encode())) == as_json["config"]["digest"]


async def test_cache_verbs_list_verify_and_remove(registry: FaultyRegistry, settings: Settings) -> None:
    reference = publish(registry, [file("a", os.urandom(100_000))])
    await run("warm", reference, cache=settings.cache)
    listing = await run("cache", "ls", cache=settings.cache)
    assert re.search(rf"{reference} +linux/amd64 +[0-9a-f]{{12}} +97\.\d KiB +complete +no +just now", listing.out)
    blobs = json.loads((await run("cache", "ls", "--blobs", "--json", cache=settings.cache)).out)
    assert len(blobs) == 3
    usage = json.loads((await run("cache", "du", "--json", cache=settings.cache)).out)
    assert usage["blobs"] == 3
    assert "total" in (await run("cache", "du", cache=settings.cache)).out
    assert (await run("cache", "verify", cache=settings.cache)).out.endswith("all sound\n")
    dry = await run("cache", "gc", "--max-size", "0", "-n", cache=settings.cache)
    assert "would free" in dry.err
    large = max(blobs, key=lambda blob: blob["size"])["digest"]
    path = f"{settings.cache}/v1/blobs/sha256/{large.removeprefix('sha256:')}"
    os.chmod(path, 0o600)
    with open(path, "r+b") as blob:  # noqa: ASYNC230
        blob.seek(50_000)
        blob.write(b"????")
    damaged = await run("cache", "verify", cache=settings.cache)
    assert (damaged.code, large in damaged.err, "1 damaged" in damaged.out) == (20, True, True)
    removed = await run("cache", "rm", reference, cache=settings.cache)
    assert (removed.code, len(removed.out.splitlines())) == (0, 2)
    assert (await run("cache", "rm", reference, cache=settings.cache)).code == 11
    assert json.loads((await run("cache", "ls", "--json", cache=settings.cache)).out) == []


async def test_closed_pipe_prints_no_traceback(registry: FaultyRegistry, settings: Settings) -> None:
    reference = publish(registry, [file("a")])
    command = "import sys; from fastpull.cli import main; sys.exit(main())"
    program = f"{sys.executable} -c '{command}' inspect --raw {reference} | true"
    shell = await asyncio.create_subprocess_shell(
        program, stderr=asyncio.subprocess.PIPE, env={**os.environ, "FASTPULL_CACHE": settings.cache}
    )
    _, err = await shell.communicate()
    assert b"Traceback" not in err


def test_start_loads_no_heavy_modules() -> None:
    program = "import sys; from fastpull.cli.main import make_parser; make_parser(); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.split()
    assert not {"aiohttp", "zstandard", "uvloop", "asyncio"} & set(loaded)


# --- words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (788_639_744, "752.1 MiB"),
        (5 << 40, "5120.0 GiB"),
    ],
)
def test_sizes_have_binary_units(count: int, words: str) -> None:
    assert size_of(count) == words


def test_ages_have_the_largest_unit() -> None:
    import time  # noqa: PLC0415

    now = time.time()
    assert [age_of(now - age) for age in (-5, 5, 61, 7200, 86400 * 3)] == [
        "just now", "just now", "1 minute ago", "2 hours ago", "3 days ago",
    ]  # fmt: skip


async def test_errors_before_the_work_are_events(settings: Settings) -> None:
    for arguments in (("pull", "UPPER", "-o", "x"), ("inspect", "oci:nowhere:x")):
        ended = await run(*arguments, "--json", cache=settings.cache)
        event = json.loads(ended.out.splitlines()[-1])
        assert (event["event"], event["exit_code"]) == ("error", ended.code)


async def test_full_stdout_is_reported(settings: Settings, registry: FaultyRegistry) -> None:
    reference = publish(registry, [file("a")])
    assert (await run("warm", reference, cache=settings.cache)).code == 0
    command = [sys.executable, "-m", "fastpull", "cache", "ls", "--cache", settings.cache]
    ended = await asyncio.to_thread(subprocess.run, ["sh", "-c", 'exec "$@" > /dev/full', "sh", *command], stderr=-1)
    assert ended.returncode == 1
    assert ended.stderr == b"fastpull: error: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("arguments", [("--cache", "", "-o", "x"), ("-o", "")])
async def test_empty_names_are_refused(settings: Settings, arguments: tuple[str, ...]) -> None:
    ended = await run("pull", "debian:12", *arguments, cache=settings.cache)
    assert (ended.code, "must not be empty" in ended.err) == (3, True), ended.err


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("debian:12", "debian+12.sqsh"),
        ("docker://quay.io/fedora/fedora", "fedora+fedora+latest.sqsh"),
        ("nvcr.io#nvidia/pytorch:24.01-py3", "nvidia+pytorch+24.01-py3.sqsh"),
        (f"debian@sha256:{'a' * 64}", f"debian+{'a' * 12}.sqsh"),
        ("oci:some/layout:v1", "layout+v1.sqsh"),
        ("oci:some/layout/", "layout.sqsh"),
        ("oci:layout:docker.io/library/app:v1", "layout+docker.io+library+app+v1.sqsh"),
        ("oci-archive:/tmp/app.tar:v1", "app+v1.sqsh"),
        (f"oci-archive:app.tar@sha256:{'a' * 64}", "app.sqsh"),
        ("docker-archive:/tmp/saved.tar.gz", "saved.sqsh"),
        ("docker-archive:/tmp/saved.tar.gz:@2", "saved+2.sqsh"),
        ("docker-archive:/tmp/saved.tar:ml/app:v1", "ml+app+v1.sqsh"),
        ("docker-daemon:app", "app+latest.sqsh"),
        ("containers-storage:localhost/app:v1", "app+v1.sqsh"),
    ],
)
def test_default_output_name_is_that_of_enroot(source: str, name: str) -> None:
    assert _default_output(source) == name


async def test_squashfs_report_is_printed_as_text_and_json(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    content = b"content " * 100_000
    reference = publish(registry, [file("a", content), file("b", content), file("c", bytes(1 << 20), mtime=-1)])
    plain = await run("pull", reference, "-o", tmp_path / "image.sqsh", cache=settings.cache)
    assert plain.code == 0, plain.err
    for words in ("4 inodes", "on the disk (zstd:1, ", "1 duplicates of 781.2 KiB", "1.0 MiB of holes", "clamped"):
        assert words in plain.err, plain.err
    again = await run("pull", reference, "-o", tmp_path / "again.sqsh", "--json", cache=settings.cache)
    report = json.loads(again.out.splitlines()[-1])["output"]
    assert report["size"] == (tmp_path / "again.sqsh").stat().st_size
    assert (report["inodes"], report["duplicates"], report["hole_bytes"], report["clamped_times"]) == (4, 1, 1 << 20, 1)
    assert report["codecs"].keys() >= {"libzstd"}
    assert (tmp_path / "image.sqsh").read_bytes() == (tmp_path / "again.sqsh").read_bytes()


async def test_source_date_epoch_sets_the_image_time(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    reference = publish(registry, [file("a")])
    for epoch in ("77", "soon"):
        ended = await run(
            "pull", reference, "-o", tmp_path / "image.sqsh", "--force", cache=settings.cache, SOURCE_DATE_EPOCH=epoch
        )
        assert ended.code == (0 if epoch == "77" else 3)
    assert (tmp_path / "image.sqsh").read_bytes()[8:12] == (77).to_bytes(4, "little")


# --- logins


def test_inspect_auth_shows_login_without_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = write(tmp_path / ".docker/config.json", {"auths": {"q.io/ml": login("user", "hunter2")}})
    assert main(["inspect", "--auth", "docker://q.io/ml/app:v1"]) == 0
    words = capsys.readouterr().out
    assert f"q.io/ml/app: user, with the password of {path}, line 3, entry 'q.io/ml'" in words
    assert "containers/auth.json: does not exist" in words
    assert main(["inspect", "--auth", "--json", "q.io"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["subject"], said["login"]) == ("q.io", None)
    assert {"name": str(path), "outcome": "no entry"} in said["places"]
    assert main(["inspect", "--auth", "--json", "q.io#ml/app"]) == 0
    said = capsys.readouterr().out
    assert json.loads(said)["login"] == {
        "origin": f"{path}, line 3, entry 'q.io/ml'",
        "username": "user",
        "kind": "password",
    }
    assert "hunter2" not in words + said


@pytest.mark.parametrize(
    ("arguments", "typed", "words"),
    [
        (["--creds", "user"], "", "go together"),
        (["--password-stdin"], "secret\n", "go together"),
        (["--creds", "user", "--password-stdin"], "", "standard input holds no password"),
        (["--creds", "user:hunter2", "--password-stdin"], "", "already holds a password"),
        (["--creds", ":hunter2"], "", "go together"),
        (["--authfile", "/no/such/file"], "", "/no/such/file"),
    ],
)
def test_incomplete_login_is_invalid_input(
    arguments: list[str],
    typed: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert main(["inspect", "--auth", "q.io", *arguments]) == 3
    said = capsys.readouterr()
    assert words in said.err
    assert "hunter2" not in said.err + said.out


def test_host_flags_may_be_repeated() -> None:
    options = make_parser().parse_args(
        ["inspect", "x", "--insecure-registry", "a", "--insecure-registry", "b:1", "--private-host", "c"]
    )
    access = settings_of(options).access
    assert access.insecure_registries == ("a", "b:1")
    assert access.private_hosts == ("c",)
