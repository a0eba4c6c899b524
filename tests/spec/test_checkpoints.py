"""Cached layers are inflated from their checkpoints, and come out as they did the first time."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fastpull
from fastpull.cache.store import Store
from fastpull.config.settings import Settings
from fastpull.oci.digest import Digest
from fastpull.pipeline import layer as layer_module
from fastpull.pipeline.checkpoints import CheckpointRecorder, Checkpoints
from fastpull.pipeline.parallel import ParallelInflater
from tests.support.layers import file, folder, publish
from tests.support.registry import FaultyRegistry
from tests.support.trees import look

CHANCE = random.Random(7)
WORDS = [CHANCE.randbytes(2 + number % 9) for number in range(3000)]
CONTENT = [b"".join(CHANCE.choices(WORDS, k=60_000)) for _ in range(8)]
LAYER = [folder("data"), *(file(f"data/{number}", content) for number, content in enumerate(CONTENT))]


@pytest.fixture
def inflated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record checkpoints of small layers; return the numbers of pieces of the layers inflated from checkpoints."""
    found: list[int] = []

    class CountedInflater(ParallelInflater):
        def __init__(self, pieces, *rest, **options) -> None:  # type: ignore[no-untyped-def]
            found.append(len(pieces))
            super().__init__(pieces, *rest, **options)

    monkeypatch.setattr(layer_module, "_MIN_RECORDED", 1000)
    monkeypatch.setattr(layer_module, "CheckpointRecorder", partial(CheckpointRecorder, 128 << 10))
    monkeypatch.setattr(layer_module, "ParallelInflater", CountedInflater)
    return found


async def pull(reference: str, path: Path, settings: Settings, kind: type = fastpull.Directory) -> fastpull.PullReport:
    async with fastpull.Client(settings) as client:
        return await client.pull(reference, kind(path, force=True))


def blob_of(registry: FaultyRegistry, settings: Settings) -> tuple[Store, Digest]:
    store = Store(settings.cache)
    [digest] = [blob.digest for blob in store.blobs() if blob.size > 100_000]
    return store, digest


@pytest.mark.parametrize("workers", [1, 2, 4])
async def test_the_second_pull_inflates_pieces_and_hashes_nothing(
    registry: FaultyRegistry,
    settings: Settings,
    tmp_path: Path,
    inflated: list[int],
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = replace(settings, workers=workers)
    reference = publish(registry, LAYER)
    await pull(reference, tmp_path / "one", settings)
    assert not inflated
    hashed: list[Digest] = []
    hasher = Digest.hasher

    def counted(digest: Digest) -> Any:
        hashed.append(digest)
        return hasher(digest)

    monkeypatch.setattr(Digest, "hasher", counted)
    report = await pull(reference, tmp_path / "two", settings)
    assert [number > 10 for number in inflated] == [True]
    _, blob = blob_of(registry, settings)
    assert blob not in hashed
    assert report.image.layers[0].diff_id not in hashed
    assert look(tmp_path / "one") == look(tmp_path / "two")


async def test_squashfs_files_are_equal(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, inflated: list[int]
) -> None:
    reference = publish(registry, LAYER)
    sums = []
    for number in range(2):
        path = tmp_path / f"{number}.sqsh"
        await pull(reference, path, settings, fastpull.Squashfs)
        sums.append(hashlib.sha256(path.read_bytes()).digest())
    assert len(inflated) == 1
    assert sums[0] == sums[1]


def _spoil_fingerprint(table: Checkpoints) -> bytes:
    pieces = [
        replace(piece, fingerprint=piece.fingerprint ^ (number == 5)) for number, piece in enumerate(table.pieces)
    ]
    return replace(table, pieces=pieces).to_bytes()


def _spoil_bit(table: Checkpoints) -> bytes:
    pieces = [replace(piece, bit=piece.bit + (number == 5)) for number, piece in enumerate(table.pieces)]
    return replace(table, pieces=pieces).to_bytes()


def _of_another_layer(table: Checkpoints) -> bytes:
    return replace(table, diff_id=Digest.of(b"")).to_bytes()


def _cut(table: Checkpoints) -> bytes:
    return table.to_bytes()[:-5]


@pytest.mark.parametrize("spoil", [_spoil_fingerprint, _spoil_bit, _of_another_layer, _cut])
@pytest.mark.parametrize("kind", [fastpull.Directory, fastpull.Squashfs, fastpull.Tar])
async def test_wrong_checkpoints_cost_time_and_nothing_else(
    registry: FaultyRegistry,
    settings: Settings,
    tmp_path: Path,
    inflated: list[int],
    spoil: Callable[[Checkpoints], bytes],
    kind: type,
) -> None:
    reference = publish(registry, LAYER)
    await pull(reference, tmp_path / "one", settings, kind)
    store, blob = blob_of(registry, settings)
    content = store.checkpoints.read(blob)
    assert content is not None
    sound = Checkpoints.from_bytes(content)
    store.checkpoints.write(blob, spoil(sound))
    await pull(reference, tmp_path / "two", settings, kind)
    if kind is fastpull.Directory:
        assert look(tmp_path / "one") == look(tmp_path / "two")
    else:
        assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    again = store.checkpoints.read(blob)
    assert again is not None
    assert Checkpoints.from_bytes(again) == sound


async def test_a_damaged_blob_is_noticed_and_fetched_anew(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, inflated: list[int]
) -> None:
    reference = publish(registry, LAYER)
    await pull(reference, tmp_path / "one", settings)
    store, blob = blob_of(registry, settings)
    path = Path(store.blob_path(blob))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)
    await pull(reference, tmp_path / "two", settings)
    assert len(inflated) == 1
    assert look(tmp_path / "one") == look(tmp_path / "two")
    assert Digest.of(path.read_bytes()) == blob


async def test_removing_a_blob_removes_its_checkpoints(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, inflated: list[int]
) -> None:
    await pull(publish(registry, LAYER), tmp_path / "one", settings)
    store, blob = blob_of(registry, settings)
    assert list(store.checkpoints) == [blob]
    store.remove(blob)
    assert list(store.checkpoints) == []
