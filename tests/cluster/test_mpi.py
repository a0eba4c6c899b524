"""Jobs of real MPI processes: traffic of the registry, results on the nodes, and faults."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.mpi import Job, errors_of, result_of
from tests.support.layers import file, hardlink, publish, whiteout
from tests.support.processes import run
from tests.support.registry import FaultyRegistry, corrupted, no_ranges, slow, status

MIB = 1 << 20
WARM = ("warm", "--mpi", "--rank-is-node", "--json")
PULL = ("pull", "--mpi", "--rank-is-node", "--json")


@pytest.fixture
def image(registry: FaultyRegistry) -> str:
    """Return an image with three layers, some 14 MiB as stored."""
    noise = random.Random(8)
    sizes = (9 * MIB, 4 * MIB, 1 * MIB)
    layers = [[file(f"data-{size}", noise.randbytes(size)), file(f"text-{size}", b"text" * 1000)] for size in sizes]
    return publish(registry, *layers)


def blob_bytes(registry: FaultyRegistry) -> int:
    """Return the number of bytes of layers that left the registry."""
    return sum(size for digest, size in registry.sent.items() if size > MIB // 2)


def image_bytes(registry: FaultyRegistry) -> int:
    return sum(len(blob) for blob in registry.blobs.values() if len(blob) > MIB // 2)


def assert_all_have(job: Job, registry: FaultyRegistry, ranks: list[int]) -> None:
    for rank in ranks:
        found = job.blobs(rank)
        missing = [digest for digest in registry.blobs if digest not in found]
        assert not missing, (rank, missing)
        assert all(found[digest] == blob for digest, blob in registry.blobs.items())


def assert_nothing_wrong(job: Job) -> None:
    """Check the digest of every published blob."""
    for rank in range(job.ranks):
        for digest, content in job.blobs(rank).items():
            assert digest == "sha256:" + hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("ranks", [2, 4, 8])
async def test_each_byte_leaves_the_registry_once(
    ranks: int, tmp_path: Path, registry: FaultyRegistry, image: str
) -> None:
    job = Job(tmp_path, ranks)
    ended = await job.run(*WARM, image)
    assert ended.code == 0, ended.err
    assert blob_bytes(registry) <= 1.05 * image_bytes(registry)
    assert_all_have(job, registry, list(range(ranks)))
    result = result_of(ended)
    assert result["registry_bytes"] == image_bytes(registry) == result["size"]
    assert result["exchanged_bytes"] == (ranks - 1) * image_bytes(registry)
    assert len(result["nodes"]) == ranks
    assert 0 < result["seconds_to_first"] <= result["seconds_to_all"]
    assert sum('"event": "node_done"' in line for line in ended.out.splitlines()) == ranks
    assert sum(asked.path.endswith("/manifests/v1") for asked in registry.requests) == 1
    assert not job.leftovers()


async def test_node_with_the_blobs_serves_them_and_all_files_are_equal(
    tmp_path: Path, registry: FaultyRegistry, image: str
) -> None:
    job = Job(tmp_path, 4)
    alone = await run("pull", image, "-o", tmp_path / "alone.sqsh", cache=f"{tmp_path}/cache-3")
    assert alone.code == 0, alone.err
    registry.sent.clear()
    ended = await job.run(*PULL, image, "-o", f"{tmp_path}/out-{{rank}}/image.sqsh")
    assert ended.code == 0, ended.err
    assert blob_bytes(registry) == 0
    result = result_of(ended)
    assert result["registry_bytes"] == 0
    assert_built_once(result, ranks=4, layers=3)
    [holder] = [node for node in result["nodes"] if node["rank"] == 3]
    assert (holder["built"], holder["received"]) == ([0], 0), "it builds the largest layer, since it has the blob"
    assert 0 < result["exchanged_bytes"] == holder["sent"] < image_bytes(registry), "each blob goes to its builder only"
    assert_same_files(job, tmp_path / "alone.sqsh")


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        pytest.param(2, ("--keep-images",), id="2 ranks, kept images"),
        pytest.param(
            4, ("--compression", "gzip:6", "--block-size", "64K", "--for", "enroot"), id="4 ranks, for enroot"
        ),
    ],
)
async def test_each_layer_is_built_once_and_all_files_equal_that_of_one_node(
    ranks: int, options: tuple[str, ...], tmp_path: Path, registry: FaultyRegistry
) -> None:
    image = layered(registry)
    alone = await run("pull", *options, image, "-o", tmp_path / "alone.sqsh", cache=f"{tmp_path}/alone")
    assert alone.code == 0, alone.err
    registry.sent.clear()
    job = Job(tmp_path, ranks)
    ended = await job.run(*PULL, *options, image, "-o", f"{tmp_path}/out-{{rank}}/image.sqsh")
    assert ended.code == 0, ended.err
    assert blob_bytes(registry) == image_bytes(registry)
    result = result_of(ended)
    assert_built_once(result, ranks, layers=6)
    assert result["registry_bytes"] == result["size"]
    assert result["exchanged_bytes"] == 0
    assert_same_files(job, tmp_path / "alone.sqsh")
    assert all(0 < node["exchange_seconds"] <= node["assembled_seconds"] for node in result["nodes"])


def layered(registry: FaultyRegistry) -> str:
    """Return an image with a repeated and an empty layer, hidden files, holes, tail ends and duplicates."""
    noise = random.Random(9)
    one, two = noise.randbytes(3 * MIB + 5), noise.randbytes(2 * MIB)
    small = [file(f"etc/{number % 7}/{number}", noise.randbytes(number % 90) + b"a") for number in range(300)]
    base = [file("one", one), file("etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n"), *small]
    again = [file("one", one), file("gap", bytes(700_000) + b"x" + bytes(300_000))]
    upper = [whiteout("one"), file("two", two), file("etc/3/3", b"new"), hardlink("etc/link", "two"), *small[::5]]
    return publish(registry, base, again, upper, [], again, [file("last", two[: MIB // 2 + 1])])


def assert_built_once(result: dict[str, Any], ranks: int, layers: int) -> None:
    assert len(result["nodes"]) == ranks
    assert sorted(layer for node in result["nodes"] for layer in node["built"]) == list(range(layers))
    assert result["run_bytes"] == sum(node["runs_sent"] for node in result["nodes"]) > 0
    assert result["run_bytes"] % (ranks - 1) == 0, "each artifact reaches each other rank once"


def assert_same_files(job: Job, alone: Path) -> None:
    for rank in range(job.ranks):
        assert (job.folder / f"out-{rank}/image.sqsh").read_bytes() == alone.read_bytes(), rank
    assert not job.leftovers()


OUTPUT = "/out-{rank}/image.sqsh"


async def pulled_alone(image: str, folder: Path, registry: FaultyRegistry) -> Path:
    alone = await run("pull", image, "-o", folder / "alone.sqsh", cache=f"{folder}/alone")
    assert alone.code == 0, alone.err
    registry.sent.clear()
    return folder / "alone.sqsh"


async def test_another_node_builds_the_layers_of_a_dead_node(
    tmp_path: Path, registry: FaultyRegistry, image: str
) -> None:
    alone = await pulled_alone(image, tmp_path, registry)
    job = Job(tmp_path, 4)
    registry.faults.append(slow(1 * MIB))
    arguments = (*PULL, "--mpi-timeout", "3", "--best-effort", image, "-o", f"{tmp_path}{OUTPUT}")
    process = await job.start(*arguments, TEST_SHIELD="1")
    await some_bytes(registry, 5 * MIB)
    os.kill(job.pid(1), signal.SIGKILL)  # the builder of the second layer
    registry.faults.clear()
    out, err = await asyncio.wait_for(process.communicate(), 80)
    results = [json.loads(line) for line in out.decode().splitlines() if '"event": "result"' in line]
    assert results, err
    assert results[0]["lost"] == [1]
    assert sorted(layer for node in results[0]["nodes"] for layer in node["built"]) == [0, 1, 2]
    for rank in (0, 2, 3):
        assert (tmp_path / f"out-{rank}/image.sqsh").read_bytes() == alone.read_bytes()
    assert not (tmp_path / "out-1/image.sqsh").exists()


async def test_hanging_builder_is_named_and_no_node_has_a_partial_file(
    tmp_path: Path, registry: FaultyRegistry, image: str
) -> None:
    job = Job(tmp_path, 3)
    registry.faults.append(slow(1 * MIB))
    process = await job.start(*PULL, "--mpi-timeout", "3", image, "-o", f"{tmp_path}{OUTPUT}")
    await some_bytes(registry, 5 * MIB)
    os.kill(job.pid(1), signal.SIGSTOP)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode != 0
    assert any("no response from rank 1 on" in line for line in err.decode().splitlines()), err
    assert not [path for path in tmp_path.glob("out-*/*") if path.stat().st_size and not path.name.startswith(".")]


async def test_damaged_artifact_frame_is_one_error(tmp_path: Path, registry: FaultyRegistry, image: str) -> None:
    ended = await Job(tmp_path, 2).run(*PULL, image, "-o", f"{tmp_path}{OUTPUT}", TEST_SPOIL="1")
    assert ended.code in (20, 40), ended.err
    [line] = errors_of(ended)
    assert "changed on the way from rank 1 on" in line
    assert not list(tmp_path.glob("out-*/*"))


async def test_differing_file_is_not_published_and_its_node_is_named(
    tmp_path: Path, registry: FaultyRegistry, image: str
) -> None:
    job, arguments = Job(tmp_path, 3), (*PULL, image, "-o", f"{tmp_path}{OUTPUT}")
    ended = await job.run(*arguments, TEST_OTHER="1")
    assert ended.code == 40, ended.err
    [line] = errors_of(ended)
    assert "rank 1 on" in line
    assert "one: ranks 0 and 2; another: rank 1" in line
    assert not list(tmp_path.glob("out-*/*"))
    ended = await job.run(*arguments, "--best-effort", TEST_OTHER="1")
    assert ended.code == 0, ended.err
    [error] = [node["error"] for node in result_of(ended)["nodes"] if node["error"]]
    assert "another: rank 1" in error
    assert sorted(path.parent.name for path in tmp_path.glob("out-*/*")) == ["out-0", "out-2"]


async def test_node_with_a_full_disk_fails_alone_with_best_effort(
    tmp_path: Path, registry: FaultyRegistry, image: str
) -> None:
    alone = await pulled_alone(image, tmp_path, registry)
    job, arguments = Job(tmp_path, 3), (*PULL, image, "-o", f"{tmp_path}{OUTPUT}")
    ended = await job.run(*arguments, TEST_FULL="1")
    assert ended.code == 40, ended.err
    [line] = errors_of(ended)
    assert "rank 1 on" in line
    assert "too large" in line
    assert not list(tmp_path.glob("out-*/*"))
    ended = await job.run(*arguments, "--best-effort", TEST_FULL="1")
    assert ended.code == 0, ended.err
    assert [node["rank"] for node in result_of(ended)["nodes"] if node["error"]] == [1]
    for rank in (0, 2):
        assert (tmp_path / f"out-{rank}/image.sqsh").read_bytes() == alone.read_bytes()
    assert not list(tmp_path.glob("out-1/*"))


async def test_bytes_received_before_a_kill_are_not_fetched_again(
    tmp_path: Path, registry: FaultyRegistry, image: str
) -> None:
    job = Job(tmp_path, 3)
    registry.faults.append(slow(2 * MIB))
    process = await job.start(*WARM, image)
    await some_bytes(registry, 10 * MIB)
    os.kill(job.pid(1), signal.SIGKILL)
    await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode != 0
    assert_nothing_wrong(job)
    registry.faults.clear()
    await registry.wait_until_idle()
    registry.sent.clear()
    ended = await job.run(*WARM, image)
    assert ended.code == 0, ended.err
    assert blob_bytes(registry) < image_bytes(registry) - 2 * MIB
    assert_all_have(job, registry, [0, 1, 2])


async def some_bytes(registry: FaultyRegistry, count: int) -> None:
    async with asyncio.timeout(60):
        while blob_bytes(registry) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_hanging_rank_is_named_and_the_job_ends(tmp_path: Path, registry: FaultyRegistry, image: str) -> None:
    job = Job(tmp_path, 3)
    registry.faults.append(slow(1 * MIB))
    process = await job.start(*WARM, "--mpi-timeout", "3", image)
    await some_bytes(registry, 2 * MIB)
    os.kill(job.pid(2), signal.SIGSTOP)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode != 0
    assert any("no response from rank 2 on" in line for line in err.decode().splitlines()), err
    assert_nothing_wrong(job)


async def test_other_ranks_go_on_without_a_dead_rank(tmp_path: Path, registry: FaultyRegistry, image: str) -> None:
    job = Job(tmp_path, 4)
    registry.faults.append(slow(1 * MIB))
    process = await job.start(*WARM, "--mpi-timeout", "3", "--best-effort", image, TEST_SHIELD="1")
    await some_bytes(registry, 4 * MIB)
    os.kill(job.pid(2), signal.SIGKILL)
    registry.faults.clear()
    out, err = await asyncio.wait_for(process.communicate(), 80)
    assert_all_have(job, registry, [0, 1, 3])
    assert_nothing_wrong(job)
    results = [json.loads(line) for line in out.decode().splitlines() if '"event": "result"' in line]
    assert results, err
    assert results[0]["lost"] == [2]
    assert {node["rank"] for node in results[0]["nodes"]} == {0, 1, 3}


async def test_full_disk_stops_all_nodes_or_only_its_own(tmp_path: Path, registry: FaultyRegistry, image: str) -> None:
    job = Job(tmp_path, 3)
    ended = await job.run(*WARM, image, TEST_FULL="1")
    assert ended.code == 40, ended.err
    [line] = errors_of(ended)
    assert "rank 1 on" in line
    assert "too large" in line
    assert_nothing_wrong(job)
    assert not job.blobs(1).keys() & {digest for digest, blob in registry.blobs.items() if len(blob) > MIB}
    ended = await job.run(*WARM, "--best-effort", image, TEST_FULL="1")
    assert ended.code == 0, ended.err
    assert_all_have(job, registry, [0, 2])
    failed = {node["rank"]: node["error"] for node in result_of(ended)["nodes"] if node["error"]}
    assert list(failed) == [1]
    assert not job.leftovers()


async def test_corrupt_bytes_are_published_by_no_node(tmp_path: Path, registry: FaultyRegistry, image: str) -> None:
    job = Job(tmp_path, 2)
    registry.faults.append(corrupted())
    ended = await job.run(*PULL, image, "-o", f"{tmp_path}/out-{{rank}}/image.sqsh")
    assert ended.code in (20, 40), ended.err
    [line] = errors_of(ended)
    assert "digest" in line
    assert not any(len(blob) > MIB for rank in range(2) for blob in job.blobs(rank).values())
    assert not list(tmp_path.glob("out-*/*"))


async def test_damaged_cache_is_named(tmp_path: Path, registry: FaultyRegistry, image: str) -> None:
    job = Job(tmp_path, 2)
    assert (await run("warm", image, cache=f"{tmp_path}/cache-1")).code == 0
    largest = max((tmp_path / "cache-1/v1/blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    largest.chmod(0o600)
    with largest.open("r+b") as blob:
        blob.seek(5 * MIB)
        blob.write(b"rotten")
    ended = await job.run(*WARM, image)
    assert ended.code == 40, ended.err
    [line] = errors_of(ended)
    assert "rank 0 on" in line
    assert "bytes came from rank 1 on" in line
    assert f"sha256:{largest.name}" not in job.blobs(0)


async def test_registry_without_ranges_serves_each_blob_to_one_node(
    tmp_path: Path, registry: FaultyRegistry, image: str
) -> None:
    job = Job(tmp_path, 2)
    registry.faults.append(no_ranges)
    ended = await job.run(*WARM, image)
    assert ended.code == 0, ended.err
    assert_all_have(job, registry, [0, 1])
    assert result_of(ended)["registry_bytes"] == image_bytes(registry)
    assert len(registry.blob_requests()) <= 1 + 3 * (2 * 2 + 1)  # one request per lease, and one for the whole blob


async def test_missing_blobs_are_one_error(tmp_path: Path, registry: FaultyRegistry, image: str) -> None:
    registry.faults.append(status(404))
    ended = await Job(tmp_path, 2).run(*WARM, image)
    assert ended.code in (11, 40), ended.err
    [line] = errors_of(ended)
    assert "no blob" in line or "sha256:" in line


async def test_ranks_that_disagree_or_share_a_cache_fetch_nothing(
    tmp_path: Path, registry: FaultyRegistry, image: str
) -> None:
    job = Job(tmp_path, 3)
    ended = await job.run(*WARM, image, "--", *WARM, image, "--platform", "linux/arm64", TEST_ODD="2")
    assert ended.code == 40, ended.err
    [line] = errors_of(ended)
    assert "(platform)" in line
    assert "linux/arm64 on rank 2" in line
    ended = await job.run(*WARM, image, "--", *WARM, image, "--cache", f"{tmp_path}/cache-0", TEST_ODD="2")
    assert ended.code == 40, ended.err
    [line] = errors_of(ended)
    assert "the same directory for rank 0 on" in line
    assert "rank 1 has its own" in line
    assert not registry.requests
    assert not job.leftovers()


@pytest.mark.parametrize("first", [0, 1])
async def test_early_failure_of_a_rank_ends_the_image_on_all(
    first: int, tmp_path: Path, registry: FaultyRegistry, image: str
) -> None:
    job = Job(tmp_path, 2)
    (tmp_path / f"out-{first}").mkdir()
    (tmp_path / f"out-{first}/image.sqsh").write_bytes(b"there")
    output = f"{tmp_path}/out-{{rank}}/image.sqsh"
    extra = ["--best-effort"] if first == 0 else []
    ended = await job.run(*PULL, *extra, image, "-o", output)
    assert ended.code in (31, 40), ended.err
    [line] = errors_of(ended)
    assert f"out-{first}/image.sqsh" in line
    assert (tmp_path / f"out-{first}/image.sqsh").read_bytes() == b"there"
    assert not (tmp_path / f"out-{1 - first}/image.sqsh").exists()
    assert not job.leftovers()


async def test_one_rank_of_a_node_works(tmp_path: Path, registry: FaultyRegistry, image: str) -> None:
    job = Job(tmp_path, 3)
    ended = await job.run("warm", "--mpi", "--json", image, f"{registry.address}/test/none:v1", image)
    assert ended.code == 11, ended.err
    [line] = errors_of(ended)
    assert "test/none" in line
    assert_all_have(job, registry, [0])
    assert not (tmp_path / "cache-1").exists()
    assert [node["rank"] for node in result_of(ended)["nodes"]] == [0]


@pytest.mark.peer("mpirun.openmpi")
async def test_open_mpi_works_like_mpich(tmp_path: Path, registry: FaultyRegistry, image: str) -> None:
    mpirun = shutil.which("mpirun.openmpi")
    assert mpirun is not None
    job = Job(tmp_path, 2, (mpirun, "--allow-run-as-root", "--oversubscribe", "-x", "FASTPULL_CACHE"))
    ended = await job.run(*WARM, image, MPI4PY_MPIABI="openmpi")
    assert ended.code == 0, ended.err
    assert_all_have(job, registry, [0, 1])


async def test_missing_mpi4py_is_an_error_with_advice(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('No module named mpi4py')")
    ended = await run("warm", "--mpi", "a", cache=f"{tmp_path}/cache", PYTHONPATH=str(tmp_path))
    assert ended.code == 40
    assert "pip install '.[mpi]'" in ended.err
