"""The agreement of ranks before a job, and the messages where they disagree."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
import zstandard

from fastpull.cli import mpi
from fastpull.cluster.blobs.claims import Claim
from fastpull.cluster.control.agreement import check_agreement, check_claims, elect, name_ranks
from fastpull.cluster.messages import ClaimResult, Hello
from fastpull.config.settings import Settings
from fastpull.errors import CacheError, Disagreement, OutputError
from fastpull.sinks.squashfs.recipe import Recipe


def hello(node: int = 0, version: str = "1", **asked: str) -> Hello:
    return Hello(f"n{node}", node, version, asked)


@pytest.mark.parametrize(
    ("hellos", "message"),
    [
        pytest.param(
            [hello(), hello(), hello(version="2")], "versions of fastpull: 1 on rank 0, 2 on rank 2", id="version"
        ),
        pytest.param(
            [hello(platform="linux/amd64"), hello(platform="linux/arm64")],
            "(platform): linux/amd64 on rank 0, linux/arm64 on rank 1",
            id="platform",
        ),
        pytest.param(
            [hello(sources="a"), *[hello(sources="b")] * 3, hello(sources="c")],
            "(sources): a on rank 0, b on ranks 1 to 3, c on rank 4",
            id="sources",
        ),
        pytest.param([hello(), hello(format="tar")], "(format): nothing on rank 0, tar on rank 1", id="new option"),
    ],
)
def test_disagreement_names_the_ranks(hellos: list[Hello], message: str) -> None:
    with pytest.raises(Disagreement) as caught:
        check_agreement(dict(enumerate(hellos)))
    assert message in str(caught.value)


def test_equal_ranks_agree_on_any_nodes() -> None:
    check_agreement({rank: Hello(f"n{rank}", rank, "1", {"sources": "a"}) for rank in range(4)})


@pytest.mark.parametrize(
    ("nodes", "each_rank", "elected"),
    [
        ([0, 0, 0, 0], False, [0]),
        ([0, 0, 2, 2], False, [0, 2]),
        ([0, 1, 0, 1], False, [0, 1]),
        ([0, 0, 0, 0], True, [0, 1, 2, 3]),
        ([0], False, [0]),
    ],
)
def test_elect_chooses_the_lowest_rank_of_each_node(nodes: list[int], each_rank: bool, elected: list[int]) -> None:
    assert elect({rank: hello(node) for rank, node in enumerate(nodes)}, each_rank=each_rank) == elected


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "rank 3"),
        ([1, 2], "ranks 1 and 2"),
        ([1, 2, 3, 7], "ranks 1 to 3 and 7"),
        ([9, 0, 4, 5, 6], "ranks 0, 4 to 6 and 9"),
    ],
)
def test_name_ranks_joins_ranges(ranks: list[int], words: str) -> None:
    assert name_ranks(ranks) == words


def claimed(*owners: int | None, kind: str = "cache") -> dict[int, dict[str, ClaimResult]]:
    return {rank: {kind: ClaimResult("/c", owner)} for rank, owner in enumerate(owners)}


HOSTS = {rank: f"n{rank}" for rank in range(9)}


def test_shared_cache_is_refused_with_advice() -> None:
    with pytest.raises(Disagreement) as caught:
        check_claims(claimed(None, 0, None), HOSTS)
    text = str(caught.value)
    assert "the cache /c is the same directory for rank 0 on n0, rank 1 on n1; rank 2 has its own" in text
    assert "without --mpi" in text


def test_shared_output_is_refused() -> None:
    with pytest.raises(Disagreement, match="the output /c is the same file or directory"):
        check_claims(claimed(1, None, kind="output"), HOSTS)


def test_separate_caches_are_accepted() -> None:
    check_claims(claimed(None, None, None), HOSTS)


def test_claim_names_its_owner_and_release_removes_it(tmp_path: Path) -> None:
    first, second = (Claim(f"{tmp_path}/x", "job", rank, CacheError) for rank in (4, 7))
    assert first.acquire() is None
    assert second.acquire() == 4
    second.release()
    assert os.listdir(tmp_path)
    first.release()
    first.release()
    assert not os.listdir(tmp_path)


def test_claims_of_other_jobs_and_outputs_do_not_collide(tmp_path: Path) -> None:
    claims = [Claim(f"{tmp_path}/{name}", job, 0, OutputError) for name in ("a", "b") for job in ("one", "two")]
    assert [claim.acquire() for claim in claims] == [None] * 4


@pytest.mark.parametrize("family", [CacheError, OutputError])
def test_claim_in_a_missing_directory_fails(tmp_path: Path, family: type[CacheError | OutputError]) -> None:
    with pytest.raises(family):
        Claim(f"{tmp_path}/none/x", "job", 0, family).acquire()


def asked(**environment: str) -> dict[str, str]:
    """Return what a rank that writes a squashfs file was asked for."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        options = argparse.Namespace(platform="linux/amd64")
        recipe = Recipe.of("zstd:3")
        job = mpi._Job(options, Settings.load(), ["a"], None, None, ["/o"], recipe)  # type: ignore[arg-type]
        return job._asked()


def said(options: dict[str, str]) -> Hello:
    return Hello("n0", 0, "1", options)


def test_ranks_compare_everything_that_decides_the_bytes_of_a_shared_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = asked()
    check_agreement({0: said(mine), 1: said(asked())})
    with pytest.raises(Disagreement, match=r"\(time\): None on rank 0, 5 on rank 1"):
        check_agreement({0: said(mine), 1: said(asked(SOURCE_DATE_EPOCH="5"))})
    monkeypatch.setattr(zstandard, "__version__", "0.0")
    with pytest.raises(Disagreement, match=r"\(codecs\): .* on rank 0, .*'0\.0'.* on rank 1"):
        check_agreement({0: said(mine), 1: said(asked())})
