"""The processes of a job resolve a tag with one query, on any number of nodes."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

import fastpull
from fastpull.cache import files
from fastpull.cache.files import CacheFiles
from fastpull.cache.job_tag_cache import JobTagCache, TagQuery
from fastpull.config.access import Access
from fastpull.config.secret import Secret
from fastpull.config.settings import Settings
from fastpull.oci.digest import Digest
from tests.support.layers import file, publish
from tests.support.processes import ProcessResult, end, run, start
from tests.support.registry import FaultyRegistry


def asked_for(registry: FaultyRegistry) -> int:
    return sum("/manifests/v1" in asked.path for asked in registry.requests)


async def resolve(settings: Settings, reference: str) -> Digest:
    async with fastpull.Client(settings) as client:
        return (await client.resolve(reference, "linux/amd64")).digest


STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_CLUSTER_NAME": "hpc"}


async def start_in(step: str, reference: str, settings: Settings) -> asyncio.subprocess.Process:
    job = {**STEP, "SLURM_STEP_ID": step}
    under = ("env", *(f"{name}={value}" for name, value in job.items()))
    return await start("warm", reference, cache=settings.cache, under=under)


async def warm_in(step: str, reference: str, settings: Settings) -> ProcessResult:
    return await end(await start_in(step, reference, settings))


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "known"])
async def test_the_processes_of_a_step_query_the_registry_once(
    registry: FaultyRegistry, settings: Settings, known: bool
) -> None:
    reference = publish(registry, [file("a", os.urandom(1 << 20))])
    if known:
        await run("warm", reference, cache=settings.cache)
    before, everything = asked_for(registry), len(registry.requests)
    processes = [await start_in("0", reference, settings) for _ in range(4)]
    ended = [await end(process) for process in processes]
    assert [one.code for one in ended] == [0] * 4, ended
    assert len({one.out for one in ended}) == 1
    assert asked_for(registry) - before == 1
    latecomer = len(registry.requests)
    assert (await warm_in("0", reference, settings)).code == 0
    assert len(registry.requests) == latecomer, "it asks for nothing at all"
    if known:
        assert len(registry.requests) - everything == 1
    assert (await warm_in("1", reference, settings)).code == 0
    assert asked_for(registry) - before == 2, "the next step asks for itself"
    assert os.listdir(f"{settings.cache}/v1/locks") == []


async def test_all_processes_of_a_step_get_the_image_of_the_first_query(
    registry: FaultyRegistry, settings: Settings
) -> None:
    step = replace(settings, job="step")
    first = await resolve(step, publish(registry, [file("a", b"1")]))
    reference = publish(registry, [file("a", b"2")])
    assert await resolve(step, reference) == first
    second = await resolve(replace(settings, job="other"), reference)
    assert second != first
    assert await resolve(settings, reference) == second
    assert await resolve(step, reference) == first, "answers of several jobs are kept side by side"


async def test_a_reported_tag_expires(
    registry: FaultyRegistry, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, step = publish(registry, [file("a")]), replace(settings, job="step")
    digest = await resolve(step, reference)
    for skew, queries in ((100, 1), (-100, 1), (121, 2), (-121, 3)):
        with monkeypatch.context() as patched:
            patched.setattr(files.CacheFiles, "time", lambda *_, skew=skew: time.time() + skew)
            await resolve(step, reference)
        assert asked_for(registry) == queries, skew
        query = TagQuery("step", (reference, "linux/amd64", "", "", "", ""))
        JobTagCache(CacheFiles(settings.cache)).save(query, digest)  # with the current time


@pytest.mark.parametrize(
    "other",
    [
        {"access": Access(username="somebody", password=Secret("else"))},
        {"access": Access(authfile="/dev/null")},
        {"job": ""},
        {"job": "another"},
    ],
    ids=["another login", "another file of logins", "no job", "another job"],
)
async def test_a_process_with_other_settings_queries_the_registry(
    registry: FaultyRegistry, settings: Settings, other: dict[str, object]
) -> None:
    reference, step = publish(registry, [file("a")]), replace(settings, job="step")
    await resolve(step, reference)
    await resolve(replace(step, **other), reference)  # type: ignore[arg-type]
    assert asked_for(registry) == 2


@pytest.mark.root
async def test_the_result_of_another_user_is_not_used(registry: FaultyRegistry, tmp_path: Path) -> None:
    """Not even a result that was renamed to this user's query."""
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o2777)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    reference = publish(registry, [file("a")])
    ended = await run("warm", reference, "--job", "step", cache=str(cache))
    assert ended.code == 0, ended.err
    (kept,) = (cache / "v1/answers/user-0").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.chmod(0o644)
    query = TagQuery("step", (reference, "linux/amd64", "", "", "", ""))
    assert query.name == kept.name
    before = asked_for(registry)
    program = JobTagCache(CacheFiles(str(cache)))
    assert program.find(query) is not None
    os.chown(kept, 65534, 65534)
    assert program.find(query) is None
    os.chown(kept, 0, 0)
    ended = await run("warm", reference, "--job", "step", cache=str(cache), as_nobody=True)
    assert ended.code == 0, ended.err
    assert asked_for(registry) == before + 1


async def test_a_refused_query_is_not_shared(registry: FaultyRegistry, settings: Settings) -> None:
    reference = publish(registry, [file("a")])
    step = replace(settings, job="step")
    await resolve(step, reference)
    answer = registry._handle

    async def refuse(request: web.Request) -> web.StreamResponse:
        return registry.refusal(403, "DENIED")

    registry._handle = refuse  # type: ignore[method-assign]
    other = replace(settings, job="other")
    results = await asyncio.gather(*(resolve(other, reference) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [fastpull.errors.AccessDenied] * 3
    registry._handle = answer  # type: ignore[method-assign]
    await resolve(other, reference)
    assert asked_for(registry) == 2


async def test_a_waiting_process_queries_after_the_death_of_the_first(
    registry: FaultyRegistry, settings: Settings
) -> None:
    reference = publish(registry, [file("a")])
    answer, asked = registry._handle, asyncio.Event()

    async def never(request: web.Request) -> web.StreamResponse:
        asked.set()
        await asyncio.sleep(60)
        return await answer(request)

    registry._handle = never  # type: ignore[method-assign]
    leader = await start_in("0", reference, settings)
    await asyncio.wait_for(asked.wait(), 30)
    waiting = await start_in("0", reference, settings)
    await asyncio.sleep(1)
    registry._handle = answer  # type: ignore[method-assign]
    leader.kill()
    await leader.communicate()
    assert (await end(waiting)).code == 0
    assert asked_for(registry) == 1


@pytest.mark.parametrize("policy", ["missing", "never"])
async def test_a_process_that_needs_no_registry_does_not_wait(
    registry: FaultyRegistry, settings: Settings, policy: str
) -> None:
    reference = publish(registry, [file("a")])
    step = replace(settings, job="step")
    digest = await resolve(step, reference)
    publish(registry, [file("a", b"new")])
    lock = JobTagCache(CacheFiles(settings.cache)).lock(TagQuery("step", (reference, "linux/amd64", "", "", "", "")))
    assert lock.try_acquire()
    assert await resolve(replace(step, pull=policy), reference) == digest
    lock.release()


async def test_expired_and_damaged_results_are_ignored(registry: FaultyRegistry, settings: Settings) -> None:
    reference, step = publish(registry, [file("a")]), replace(settings, job="step")
    await resolve(step, reference)
    (kept,) = Path(settings.cache, "v1/answers").iterdir()
    sound = kept.read_bytes()
    for content in (b"", b"{}\n", sound[:-2], sound.replace(b"sha256", b"sha257")):
        kept.write_bytes(content)
        await resolve(step, reference)
    assert asked_for(registry) == 5
    fastpull.cache.CacheManager(settings.cache).collect()
    assert kept.exists()
    os.utime(kept, (0, 0))
    fastpull.cache.CacheManager(settings.cache).collect()
    assert not kept.exists()


def test_the_results_of_a_few_jobs_are_kept(tmp_path: Path) -> None:
    kept, digest = JobTagCache(CacheFiles(str(tmp_path))), Digest.of(b"a")
    queries = [TagQuery(f"job {number}", ("a",)) for number in range(40)]
    for query in queries:
        kept.save(query, digest)
    assert [kept.find(query) for query in queries] == [None] * 24 + [digest] * 16
    assert len(files.CacheFiles(str(tmp_path)).names("answers")) == 1


def test_the_default_job_is_the_slurm_step() -> None:
    assert Settings.load(STEP).job == "hpc.7.0"
    assert Settings.load({"SLURM_JOB_ID": "7"}).job == ""
    assert Settings.load({**STEP, "FASTPULL_JOB": "mine"}).job == "mine"
    assert Settings.load(STEP, job="").job == ""
