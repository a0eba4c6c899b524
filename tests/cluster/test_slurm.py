"""A real Slurm: steps on two nodes share a cache, and the examples run unchanged."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastpull
from tests.support.layers import file, publish, stored
from tests.support.registry import FaultyRegistry, slow
from tests.support.slurm import PROGRAMS, Slurm, slurm

EXAMPLES = Path(fastpull.__file__).parents[1] / "examples/slurm"
CONTENTS = [os.urandom(size << 20) for size in (8, 4)]
SIZE = sum(map(len, CONTENTS))

pytestmark = [pytest.mark.root, pytest.mark.peer(*PROGRAMS)]

BOTH = ("srun", "--nodes=2", "--ntasks-per-node=1")
FASTPULL = (sys.executable, "-m", "fastpull")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    prolog = (EXAMPLES / "prolog.sh").read_text()
    here = str(Path(sys.executable).parent / "fastpull")
    assert "\nFASTPULL=/opt/fastpull/bin/fastpull\n" in prolog, "the line that sites edit"
    folder = tmp_path_factory.mktemp("slurm")
    prolog = prolog.replace("/opt/fastpull/bin/fastpull", here).replace(
        "HOME=", f"FASTPULL_CACHE={folder}/prolog HOME="
    )
    with slurm(folder, prolog) as running:
        yield running


def image(registry: FaultyRegistry, rate: int | None = None, tag: str = "v1") -> str:
    registry.faults = [slow(rate)] if rate else []
    layers = [stored([file(f"f{n}", content)], bytes) for n, content in enumerate(CONTENTS)]
    return publish(registry, *layers, tag=tag)


def blob_bytes(registry: FaultyRegistry) -> int:
    return sum(registry.sent.values())


async def until(registry: FaultyRegistry, sent: int) -> None:
    async with asyncio.timeout(60):
        while blob_bytes(registry) < sent:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_step_on_all_nodes_downloads_once_and_resolves_once(
    registry: FaultyRegistry, cluster: Slurm, tmp_path: Path
) -> None:
    reference = image(registry, 8 << 20)
    ended = await cluster.run(*BOTH, *FASTPULL, "warm", reference, FASTPULL_CACHE=str(tmp_path / "cache"))
    assert ended.code == 0, ended.err + cluster.logs()
    assert [line.split()[1] for line in ended.out.splitlines()] == [reference] * 2
    assert SIZE <= blob_bytes(registry) <= 1.01 * SIZE + 10_000
    requests = [(asked.method, asked.path) for asked in registry.requests if "/manifests/v1" in asked.path]
    assert len(requests) == 1, requests
    assert fastpull.cache.CacheManager(str(tmp_path / "cache")).verify().is_sound
    asked = len(registry.requests)
    again = await cluster.run(*BOTH, *FASTPULL, "warm", reference, FASTPULL_CACHE=str(tmp_path / "cache"))
    assert again.code == 0, again.err
    assert len(registry.requests) == asked + 1, "the next step resolves the tag once"


@pytest.mark.parametrize("number", ["KILL", "TERM"])
async def test_another_node_takes_over_after_the_leader_is_killed(
    registry: FaultyRegistry, cluster: Slurm, tmp_path: Path, number: str
) -> None:
    reference = image(registry, 1 << 20)
    environment = {"FASTPULL_CACHE": str(tmp_path / "cache")}
    one = ("srun", "--nodes=1", "--ntasks=1")
    leader = await cluster.start(*one, "--job-name=leader", "-w", "n1", *FASTPULL, "warm", reference, **environment)
    await until(registry, SIZE // 4)
    other = await cluster.start(*one, "-w", "n2", *FASTPULL, "warm", reference, "-v", **environment)
    assert other.stderr is not None
    async with asyncio.timeout(60):
        while b"waiting for" not in (line := await other.stderr.readline()):
            assert line, "fastpull ended"
    killed = await cluster.run("scancel", f"--signal={number}", f"{await cluster.job('leader')}.0")
    assert killed.code == 0, killed.err
    await asyncio.wait_for(leader.communicate(), 60)
    before = blob_bytes(registry)
    registry.faults.clear()
    _, err = await asyncio.wait_for(other.communicate(), 60)
    assert leader.returncode != 0
    assert other.returncode == 0, err.decode()
    assert blob_bytes(registry) <= 1.01 * SIZE + (10 << 20), "at most the bytes in flight are fetched again"
    assert blob_bytes(registry) > before
    cache = fastpull.cache.CacheManager(str(tmp_path / "cache"))
    assert cache.verify().is_sound
    assert cache.usage().partial == 0
    assert os.listdir(tmp_path / "cache/v1/locks") == []


@pytest.mark.parametrize(
    "comment", ["image={}", "project=a,image={};x", "image=no.such.registry.invalid/x:y", "nothing"]
)
async def test_prolog_warms_the_image_of_a_job_and_fails_no_job(
    registry: FaultyRegistry, cluster: Slurm, comment: str
) -> None:
    cache = cluster.folder / "prolog"
    reference = image(registry, tag=f"v{len(comment)}")
    before = blob_bytes(registry)
    if cache.exists():
        fastpull.cache.CacheManager(str(cache)).collect(max_size=0)
    ended = await cluster.run("srun", "--nodes=2", f"--comment={comment.format(reference)}", "true")
    assert ended.code == 0, ended.err
    states = await cluster.run("sinfo", "--noheader", "--format=%T")
    assert "drain" not in states.out
    wanted = "{}" in comment
    assert blob_bytes(registry) - before == pytest.approx(SIZE if wanted else 0, abs=10_000)
    names = [one.reference for one in fastpull.cache.CacheManager(str(cache)).images()] if wanted else []
    assert names == ([reference] if wanted else [])


@pytest.mark.peer("unsquashfs")
@pytest.mark.parametrize("example", ["local-copies.sbatch", "broadcast.sbatch"])
async def test_batch_examples_write_a_file_on_each_node(
    registry: FaultyRegistry, cluster: Slurm, tmp_path: Path, example: str
) -> None:
    reference, said = image(registry), tmp_path / "said"
    check = 'echo "$SLURMD_NODENAME $(stat -f -c %T "$IMAGE_FILE") $(unsquashfs -cat "$IMAGE_FILE" f1 | sha256sum)"'
    command = ("--nodes=2", f"--output={said}", EXAMPLES / example, reference, "sh", "-c", check)
    code = await cluster.batch(*command, FASTPULL_CACHE=str(tmp_path / "cache"))
    assert code == 0, said.read_text()
    digest = fastpull.Digest.of(CONTENTS[1]).encoded
    lines = [line for line in said.read_text().splitlines() if digest in line]
    assert sorted(lines) == [f"{node} tmpfs {digest}  -" for node in ("n1", "n2")], said.read_text()
    assert SIZE <= blob_bytes(registry) <= 1.01 * SIZE + 10_000
    left = await cluster.run(*BOTH, "ls", "-A", cluster.local)
    assert left.out == "", "the examples remove their files from the nodes"
    shared = fastpull.cache.CacheManager(str(tmp_path / "cache")).usage()
    assert shared.images == (1 if example == "local-copies.sbatch" else 0)


async def test_failure_of_fastpull_fails_the_step(registry: FaultyRegistry, cluster: Slurm, tmp_path: Path) -> None:
    said = tmp_path / "said"
    command = ("--nodes=2", f"--output={said}", EXAMPLES / "local-copies.sbatch", f"{registry.address}/no/such:v1")
    assert await cluster.batch(*command, "true", FASTPULL_CACHE=str(tmp_path / "cache")) == 11, said.read_text()
    assert "has no" in said.read_text()
