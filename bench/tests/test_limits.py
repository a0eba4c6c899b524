"""The limit of the machine, and the clock of its stages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.clock import Clock
from bench.limits import CHAINS, LimitStage, LimitWork, limit_of
from bench.stages import measure_stages
from tests.support.images.generated import Shape
from tests.support.images.layouts import TAG, Layout, write_layout

SECONDS = {
    LimitStage.RECEIVE: (1.0, 2.0),
    LimitStage.INFLATE: (2.0, 9.0),
    LimitStage.HASH_TAR: (1.0, 3.0),
    LimitStage.COMPRESS: (20.0, 6.0),
}
WORK = LimitWork(SECONDS, blob_bytes=10, tar_bytes=30, entries=4)


def test_parallel_work_is_divided_by_the_cores() -> None:
    limit = limit_of(WORK, list(LimitStage), cores=2)
    assert limit.seconds == limit.shared_seconds == 22.0


def test_limit_is_at_least_the_longest_chain_of_one_layer() -> None:
    limit = limit_of(WORK, list(LimitStage), cores=1000)
    assert (limit.seconds, limit.chain_seconds, limit.chain) == (9.0, 9.0, LimitStage.INFLATE)


def test_limit_counts_only_the_stages_of_the_job() -> None:
    limit = limit_of(WORK, [LimitStage.RECEIVE], cores=1)
    assert (limit.seconds, limit.chain_seconds, limit.chain) == (3.0, 0.0, None)


def test_block_compression_is_not_a_chain() -> None:
    assert LimitStage.COMPRESS not in CHAINS


def test_inner_stage_pauses_the_outer_stage() -> None:
    times = iter((0.0, 1.0, 3.0, 4.0, 8.0, 9.0, 11.0))
    clock = Clock(lambda: next(times))
    with (
        clock.running(LimitStage.INFLATE),
        clock.running(LimitStage.READ),
    ):  # from 1 to 8, with an inner stage from 3 to 4
        pass
    with clock.running(LimitStage.INFLATE):  # from 9 to 11
        pass
    assert clock.seconds == {LimitStage.INFLATE: 2.0 + 4.0 + 2.0, LimitStage.READ: 1.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    "wanted",
    [
        [LimitStage.READ, LimitStage.HASH_BLOB, LimitStage.STORE],
        [LimitStage.READ, LimitStage.INFLATE, LimitStage.HASH_TAR, LimitStage.SCAN, LimitStage.FILES],
        [LimitStage.READ, LimitStage.INFLATE, LimitStage.SCAN, LimitStage.COMPRESS, LimitStage.BLOCKS],
    ],
    ids=["download", "directory", "squashfs"],
)
def test_all_bytes_pass_through_all_stages(tmp_path: Path, wanted: list[LimitStage]) -> None:
    shape = Shape("some", layers=2, files=60, file_size=20_000)
    layout = Layout("some", str(tmp_path / "layout"), TAG)
    write_layout(layout.path, map(shape.members, range(shape.layers)))
    (tmp_path / "out").mkdir()
    work = measure_stages(layout, "", str(tmp_path / "out"), wanted)
    assert set(work.seconds) == set(wanted)
    assert all(len(seconds) == 2 for seconds in work.seconds.values())
    if LimitStage.STORE in wanted:
        stored = sum(path.stat().st_size for path in (tmp_path / "out").glob("blob-*"))
        assert stored == work.blob_bytes == layout.facts()["compressed_bytes"]
    if LimitStage.FILES in wanted:
        assert sum(len(names) for _, _, names in os.walk(tmp_path / "out" / "root")) == 60
        assert work.entries > 60
        assert work.tar_bytes > work.blob_bytes
    if LimitStage.BLOCKS in wanted:
        assert 0 < (tmp_path / "out" / "image").stat().st_size < work.tar_bytes
