"""The examples work as documented."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fastpull
from fastpull.config.settings import Settings
from tests.support.layers import Member, file, folder, publish
from tests.support.registry import FaultyRegistry

ROOT = Path(fastpull.__file__).parents[1]


def host_shell() -> list[Member]:
    """Return a root filesystem with the host's shell."""
    shell = Path(shutil.which("bash") or "")
    listed = subprocess.run(["ldd", shell], capture_output=True, text=True, check=True).stdout.split()
    paths = {*(Path(word) for word in listed if word.startswith("/"))}
    libraries = [file(str(path).lstrip("/"), path.read_bytes(), mode=0o755) for path in sorted(paths)]
    return [*libraries, file("bin/sh", shell.read_bytes(), mode=0o755), folder("srv", 0o755)]


async def example(name: str, *arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "FASTPULL_CACHE": str(cache)}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / name),
        *arguments,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return subprocess.CompletedProcess(name, process.returncode or 0, out.decode(), err.decode())


@pytest.mark.root
async def test_runtime_starts_image(registry: FaultyRegistry, tmp_path: Path) -> None:
    config = {
        "Entrypoint": ["/bin/sh", "-c", 'echo "$PWD $GREETING $*"; [ $$ = 1 ] && exit 7', "name"],
        "Cmd": ["from cmd"],
        "Env": ["GREETING=it's"],
        "WorkingDir": "/srv",
    }
    reference = publish(registry, host_shell(), config=config)
    ended = await example("run.py", reference, cache=tmp_path / "cache")
    assert (ended.returncode, ended.stdout) == (7, "/srv it's from cmd\n"), ended.stderr
    assert "MiB" in ended.stderr
    assert "ready" in ended.stderr
    given = await example("run.py", reference, "mine", cache=tmp_path / "cache")
    assert (given.returncode, given.stdout) == (7, "/srv it's mine\n"), given.stderr
    missing = await example("run.py", f"{registry.address}/no/such:v1", cache=tmp_path / "cache")
    assert (missing.returncode, missing.stdout) == (11, "")


async def test_profile_of_library_page_works(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    page = (ROOT / "docs/library.md").read_text()
    block = next(text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "class Stamped" in text)
    names: dict[str, Any] = {}
    exec(block.rpartition("fastpull.pull(")[0], names)
    reference = publish(registry, [file("a")])
    async with fastpull.Client(settings) as client:
        report = await client.pull(reference, tmp_path / "out", runtimes=["plain", names["Stamped"]()])
    assert (tmp_path / "out/etc/image-digest").read_text() == f"{report.image.digest}\n"
    assert (tmp_path / "out/proc").is_dir()


async def test_service_warms_listed_images(registry: FaultyRegistry, tmp_path: Path) -> None:
    reference = publish(registry, [file("a", b"1")])
    wanted = tmp_path / "list"
    wanted.write_text(f"# images\n{reference}\n{registry.address}/no/such:v1\n")
    ended = await example("warm_service.py", str(wanted), "--once", cache=tmp_path / "cache")
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [line["what"] for line in lines if line["what"] != "failed"] == ["fetched", "warm", "stopped"]
    assert [line["code"] for line in lines if line["what"] == "failed"] == [11]
    assert (ended.returncode, lines[-1]["failed"]) == (1, 1)


async def test_service_runs_until_terminated(registry: FaultyRegistry, tmp_path: Path) -> None:
    wanted = tmp_path / "list"
    wanted.write_text(publish(registry, [file("a", b"1")]))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples/warm_service.py"),
        str(wanted),
        "--every",
        "0.1",
        env={**os.environ, "FASTPULL_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    found: list[dict[str, object]] = []
    async with asyncio.timeout(60):
        while sum(line["what"] == "warm" for line in found) < 2:
            found.append(json.loads(await process.stdout.readline()))
        wanted.write_text(publish(registry, [file("a", b"2")], tag="v2"))
        while sum(line["what"] == "fetched" for line in found) < 2:
            found.append(json.loads(await process.stdout.readline()))
        process.terminate()
        rest = await process.stdout.read()
        assert json.loads(rest.splitlines()[-1])["what"] == "stopped"
        assert await process.wait() == 0
