"""Short forms of the campaigns: see ``docs/testing.md``.

Each time the same trials, so that a change makes them fail and not chance; ``FASTPULL_TESTS_SEED`` takes others.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from fastpull.registry.http.retry import Backoff
from tests.campaigns.bitrot import BitRot
from tests.campaigns.campaign import Campaign, Missed, Unavailable, run
from tests.campaigns.concurrency import Concurrency, Handover
from tests.campaigns.crash import Crash
from tests.campaigns.errnos import Errnos
from tests.campaigns.forgery import Forgery
from tests.campaigns.powercut import PowerCut
from tests.campaigns.refusal import Refusal
from tests.campaigns.registry import Permanent, Registry
from tests.campaigns.sameness import Sameness
from tests.campaigns.tar import TarSubject

SEED = int(os.environ.get("FASTPULL_TESTS_SEED") or 1)


async def short(campaign: Campaign, trials: int) -> None:
    try:
        report = await run(campaign, SEED, trials)
    except Unavailable as reason:
        pytest.skip(str(reason))
    print(report.details())
    assert not report.failures, f"{report.details()}\nmake faults ARGS='{report.name} --seed {report.seed}'"
    assert report.trials, "no misfortune came to pass"


@pytest.mark.peer("strace")
async def test_a_death_at_any_time_loses_nothing_and_publishes_no_damage() -> None:
    await short(Crash(), 4)


@pytest.mark.peer("strace", "prlimit")
async def test_a_failing_system_call_is_a_typed_error_and_publishes_nothing() -> None:
    await short(Errnos(), 6)


@pytest.mark.root
@pytest.mark.peer("mkfs.ext4", "unshare")
async def test_damage_by_a_power_cut_is_never_trusted() -> None:
    await short(PowerCut(), 3)


async def test_a_flipped_bit_in_the_cache_is_found_and_repaired() -> None:
    await short(BitRot(), 14)


async def test_a_forged_cache_file_is_a_miss_or_a_typed_error() -> None:
    await short(Forgery(), 60)


async def test_many_processes_share_a_cache_with_a_collection_and_deaths() -> None:
    await short(Concurrency(8), 3)


async def test_waiting_processes_continue_soon_after_the_death_of_the_leader() -> None:
    await short(Handover(patience_seconds=5.0), 1)


async def test_a_pull_survives_a_registry_with_frequent_faults() -> None:
    await short(Registry(), 5)


@pytest.mark.peer("tar")
async def test_archives_are_read_as_other_readers_read_them_or_refused() -> None:
    await short(TarSubject(), 150)


async def test_a_registry_with_permanent_faults_gives_the_right_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Backoff, "pause_seconds", lambda *_: 0.01)
    await short(Permanent(), Permanent.trials)


async def test_a_pull_ends_if_one_blob_is_refused() -> None:
    await short(Refusal(), 60)


async def test_a_squashfs_image_is_the_same_on_every_path_of_execution() -> None:
    await short(Sameness(), 4)


async def test_a_campaign_distinguishes_failures_from_inconclusive_trials() -> None:
    report = await run(_Example(), 7, 5)
    assert str(report) == "example: 2 / 4 (seed 7, 1 missed)"
    assert [number for number, _ in report.failures] == [1, 2]
    assert "--seed 7 --only 2: wrong" in report.details()
    assert (await run(_Example(), 7, 5, only=3)).trials == 1


class _Example(Campaign):
    name, trials = "example", 5

    async def prepare(self, folder: Path) -> None:
        pass

    async def trial(self, choose: random.Random, folder: Path) -> None:
        if folder.name == "0":
            raise Missed
        if folder.name == "1":
            raise OSError("foreign")
        assert folder.name != "2", "wrong"
