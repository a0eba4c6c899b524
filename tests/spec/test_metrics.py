"""Metrics for a site's monitoring."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path

import pytest

import fastpull
from fastpull.config.settings import Settings
from fastpull.metrics import METRICS, Metrics
from tests.support.layers import file, publish, stored
from tests.support.processes import end, kill, run, start
from tests.support.registry import FaultyRegistry, slow

CONTENT = os.urandom(3 << 20)
UID = str(os.geteuid())


def samples(path: Path) -> dict[str, float]:
    """Return the samples of a text file by the grammar of Prometheus' format."""
    text, found, kinds = path.read_text(), dict[str, float](), dict[str, str]()
    assert text.endswith("\n")
    for line in text.splitlines():
        if comment := re.fullmatch(r"# (HELP|TYPE) (\S+) (.+)", line):
            if comment[1] == "TYPE":
                assert comment[2] not in kinds, "a metric has one TYPE line, before its samples"
                kinds[comment[2]] = comment[3]
            continue
        sample = re.fullmatch(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{([a-z]+="[^"\\]*"(?:,[a-z]+="[^"\\]*")*)\} (\S+)', line)
        assert sample, line
        name, labels = sample[1], sample[2].replace(f',uid="{UID}"', "")
        assert list(kinds)[-1] == name, "the samples of a metric are grouped"
        assert (kinds[name] == "counter") == name.endswith("_total")
        key = f"{name}{{{labels}}}"
        assert key not in found
        found[key] = float(sample[3])
    return found


def of(path: Path, name: str, labels: str) -> float | None:
    return samples(path).get(f"fastpull_{name}{{{labels}}}")


async def test_commands_add_their_counters(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    layer, path, before = stored([file("f", CONTENT)], bytes), tmp_path / "fastpull.prom", time.time()
    reference = publish(registry, layer)
    for number in range(3):
        output = tmp_path / f"out{number}"
        ended = await run("pull", reference, "-o", output, "--metrics", path, cache=settings.cache)
        assert ended.code == 0, ended.err
    warmed = await run("warm", reference, "-q", cache=settings.cache, under=("env", f"FASTPULL_METRICS={path}"))
    assert warmed.code == 0, warmed.err
    missing = await run("warm", f"{registry.address}/no/such:v1", "--metrics", path, cache=settings.cache)
    assert missing.code == 11
    pulls, warms = 'command="pull"', 'command="warm"'
    assert of(path, "runs_total", f'code="0",{pulls}') == 3
    assert of(path, "runs_total", f'code="0",{warms}') == 1
    assert of(path, "runs_total", f'code="11",{warms}') == 1
    assert of(path, "images_total", pulls) == 3
    assert of(path, "downloaded_bytes_total", pulls) == len(layer.blob)
    assert of(path, "cached_bytes_total", pulls) == 2 * len(layer.blob)
    assert of(path, "cached_bytes_total", warms) == len(layer.blob)
    assert (of(path, "unpacked_bytes_total", pulls) or 0) > 3 * len(CONTENT)
    assert of(path, "unpacked_bytes_total", warms) == 0
    total, last = of(path, "run_seconds_total", pulls) or 0, of(path, "last_run_seconds", pulls) or 0
    assert 0 < last < total
    assert before < (of(path, "last_success_timestamp_seconds", warms) or 0) < time.time()
    failed = of(path, "last_run_timestamp_seconds", warms) or 0
    assert (of(path, "last_success_timestamp_seconds", warms) or 0) < failed
    stages = [key for key in samples(path) if key.startswith("fastpull_stage_seconds_total")]
    assert any('stage="downloading"' in key for key in stages)
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o644, "the collector is another user"
    assert registry.address not in text
    assert "test/image" not in text
    assert sorted(name for name in os.listdir(tmp_path) if "prom" in name or name.startswith(".")) == [path.name]


async def test_importer_counts_for_its_user(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    job = ("env", "SLURM_JOB_ID=1", "SLURM_STEP_ID=0", f"FASTPULL_METRICS={folder}")
    ended = await run("importer", "get", f"docker://{publish(registry, [file('a')])}", cache=settings.cache, under=job)
    assert ended.code == 0, ended.err
    refused = await run("importer", "get", "nothing", cache=settings.cache, under=job)
    assert refused.code == 3
    path = folder / f"fastpull-{UID}.prom"
    assert of(path, "runs_total", 'code="0",command="importer"') == 1
    assert of(path, "runs_total", 'code="3",command="importer"') == 1


async def test_concurrent_commands_all_count(tmp_path: Path, settings: Settings) -> None:
    path = tmp_path / "fastpull.prom"
    processes = [
        await start("warm", "oci:/no/such", "--metrics", path, cache=settings.cache, under=("nice", "-n", "5"))
        for _ in range(4)
    ]
    codes = {(await end(process)).code for process in processes}
    assert len(codes) == 1
    assert of(path, "runs_total", f'code="{codes.pop()}",command="warm"') == 4


async def test_interrupted_command_counts(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    registry.faults = [slow(1 << 20)]
    reference = publish(registry, stored([file("f", CONTENT)], bytes))
    process = await start("warm", reference, "--metrics", tmp_path / "a.prom", cache=settings.cache)
    async with asyncio.timeout(30):
        while not registry.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await kill(process, signal.SIGTERM)).code == 130
    assert of(tmp_path / "a.prom", "runs_total", 'code="130",command="warm"') == 1


@pytest.mark.parametrize("place", ["missing/a.prom", "file/a.prom"])
async def test_unwritable_metrics_are_an_error_for_the_flag_and_a_warning_for_a_setting(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").touch()
    reference = publish(registry, [file("a")])
    named = await run("warm", reference, "--metrics", tmp_path / place, cache=settings.cache)
    assert (named.code, registry.requests) == (31, []), "what the command line names is looked at before the work"
    assert "fastpull: error: output: " in named.err
    ended = await run("warm", reference, cache=settings.cache, FASTPULL_METRICS=str(tmp_path / place))
    assert ended.code == 0
    assert ended.err.count("warning: metrics are not written: output: ") == 1
    assert os.path.dirname(place) in ended.err


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\n",
        b'fastpull_runs_total{code="0",command="warm"} nan\n',
        b'fastpull_runs_total{code="0",command="warm"} 1e999\n',
        b'other_total{a="b"} 5\n',
        b'fastpull_runs_total{a="} 7\n',
        b"fastpull_runs_total 3\n",
    ],
)
def test_foreign_lines_are_dropped(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.prom"
    path.write_bytes(content)
    Metrics("warm").write(str(path), 0)
    assert sum(value for key, value in samples(path).items() if key.startswith("fastpull_runs_total")) == 1
    assert not any(key.startswith("other") for key in samples(path))


@pytest.mark.root
def test_other_users_files_and_links_are_not_read(tmp_path: Path) -> None:
    path, target = tmp_path / "a.prom", tmp_path / "target"
    Metrics("warm").write(str(path), 0)
    os.chown(path, 65534, 65534)
    Metrics("warm").write(str(path), 0)
    assert of(path, "runs_total", 'code="0",command="warm"') == 1
    target.write_text("precious")
    path.unlink()
    path.symlink_to(target)
    with pytest.raises(fastpull.errors.OutputError):
        Metrics("warm").write(str(path), 0)
    assert target.read_text() == "precious"


def test_metrics_page_lists_every_metric() -> None:
    page = (Path(fastpull.__file__).parents[1] / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(fastpull_\w+)` \| (\w+) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [(name, kind, text) for name, (kind, text) in METRICS.items()]
