"""Bit rot: one bit of a cache file flips."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

import fastpull
from fastpull.cache.partial.journal import RECORD_SIZE, parse_records
from fastpull.config.settings import Settings
from tests.campaigns.campaign import Campaign
from tests.campaigns.subject import FORMS, Subject
from tests.support.registry import FaultyRegistry, halves

_FINISHED = ("finished image", "finished image's seal")
_KINDS = ("config", *_FINISHED, "index", "journal", "layer", "manifest", "partial data", "ref", "seal")


class BitRot(Campaign):
    """Assert that `cache verify` finds every flip, and that a pull repairs it before it reaches an output."""

    name = "bitrot"
    trials = 5000

    async def prepare(self, folder: Path) -> None:
        self._registry = await FaultyRegistry().__aenter__()
        self._subject = Subject(self._registry, 4, (3 << 20,))
        await self._subject.prepare(folder)
        self._full, self._torn = folder / "cache", folder / "torn"
        async with fastpull.Client(Settings(cache=str(self._full), workers=2)) as client:
            await client.ensure_squashfs(self._subject.reference)
        self._registry.faults = [halves()]
        with pytest.raises(fastpull.errors.NotFound):
            await self._subject.pull(folder / "none", self._torn)
        self._registry.faults.clear()

    async def close(self) -> None:
        await self._registry.__aexit__()

    async def trial(self, choose: random.Random, folder: Path) -> None:
        kind, cache = choose.choice(_KINDS), folder / "cache"
        is_partial = kind in ("journal", "partial data")
        # with a cached image, a pull would read nothing else
        ignored = None if kind in _FINISHED else shutil.ignore_patterns("*.sqsh", "*.sqsh.seal")
        shutil.copytree(self._torn if is_partial else self._full, cache, symlinks=True, ignore=ignored)
        store = cache / "v1"
        path, at = self._pick_byte(choose, kind, store)
        _flip(path, at, choose.randrange(8))
        what = f"{kind}: {path.relative_to(cache)}, byte {at}"
        self.report.counts[kind] += 1
        found = fastpull.cache.CacheManager(cache).verify(dry_run=True)
        assert found.damaged == 1, f"verify found {found.damaged} damaged files, expected 1: {what}"
        mended_by_verify = choose.random() < 0.5
        if mended_by_verify:
            assert fastpull.cache.CacheManager(cache).verify().damaged == 1, (
                f"verify found another number than its dry run: {what}"
            )
            assert fastpull.cache.CacheManager(cache).verify().is_sound, f"verify did not repair: {what}"
        output = folder / (FORMS["squashfs"] if kind in _FINISHED else choose.choice(sorted(FORMS.values())))
        await self._subject.pull(output, cache)
        self._subject.check(output)
        assert fastpull.cache.CacheManager(cache).verify(dry_run=True).is_sound, f"the pull did not repair: {what}"

    def _pick_byte(self, choose: random.Random, kind: str, store: Path) -> tuple[Path, int]:
        """Return a file of a kind, and the offset of a byte in use."""
        if kind in ("journal", "partial data"):
            partial = choose.choice(sorted(path.parent for path in store.glob("partial/*/*/journal")))
            size = os.path.getsize(partial / "data")
            if kind == "journal":
                records = os.path.getsize(partial / "journal") // RECORD_SIZE
                return partial / "journal", choose.randrange(records * RECORD_SIZE)
            record = choose.choice(parse_records((partial / "journal").read_bytes(), size))
            return partial / "data", record.offset + choose.randrange(record.length)
        layers = {digest.partition(":")[2] for digest in self._subject.sizes}
        blobs = {path for path in store.glob("blobs/*/*") if path.suffix != ".seal"}
        documents = {path: b'"rootfs"' in path.read_bytes() for path in blobs if path.name not in layers}
        files = {
            "config": {path for path, is_config in documents.items() if is_config},
            "finished image": set(store.glob("images/*/*.sqsh")),
            "finished image's seal": set(store.glob("images/*/*.seal")),
            "index": set(store.glob("index/*/*")),
            "layer": {path for path in blobs if path.name in layers},
            "manifest": {path for path, is_config in documents.items() if not is_config},
            "ref": set(store.glob("refs/*")),
            "seal": set(store.glob("blobs/*/*.seal")),
        }
        path = choose.choice(sorted(files[kind]))
        return path, choose.randrange(os.path.getsize(path))


def _flip(path: Path, at: int, bit: int) -> None:
    mode = path.stat().st_mode
    path.chmod(0o600)
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))
    path.chmod(mode)
