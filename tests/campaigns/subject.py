"""The image of all trials, and the output expected from it."""

from __future__ import annotations

import os
from copy import copy
from pathlib import Path

import fastpull
from fastpull.cache.partial.extents import Extents
from fastpull.cache.partial.journal import matches, parse_records
from fastpull.config.access import DEFAULT_ACCESS, Access
from fastpull.config.settings import Settings
from fastpull.demo.image import make_image
from tests.support.layers import file, stored
from tests.support.registry import FaultyRegistry
from tests.support.trees import FoundEntry, look

_NAME, _TAG = "test/image", "v1"
FORMS = {"dir": "out", "squashfs": "out.sqsh"}


_OLD = b"old"
_ROOTFS = ("bin", "etc", "usr")


def make_old(output: Path) -> None:
    """Create an output that ``--force`` replaces: a file, or a root filesystem."""
    if output.name == FORMS["squashfs"]:
        output.write_bytes(_OLD)
        return
    for name in _ROOTFS:
        (output / name).mkdir(parents=True)


def is_old(output: Path) -> bool:
    """Return whether the output of `make_old` is unchanged."""
    if output.is_dir():
        return sorted(os.listdir(output)) == sorted(_ROOTFS)
    return output.is_file() and output.read_bytes() == _OLD


class Subject:
    """The demo image in a registry, and the outputs of an undisturbed pull.

    Args:
        registry: registry that receives the image.
        mebibytes: size of the file content.
        noise: sizes of additional layers, each with a file of random bytes.
    """

    def __init__(self, registry: FaultyRegistry, mebibytes: int, noise: tuple[int, ...] = ()) -> None:
        self.registry = registry
        image = make_image(mebibytes)
        layers = list(zip(image.layers, image.diff_ids, strict=True))
        for number, size in enumerate(noise):
            made = stored([file(f"noise/{number}", os.urandom(size))], bytes)
            layers.append((made.blob, made.diff_id))
        registry.add_image(_NAME, _TAG, [blob for blob, _ in layers], [diff_id for _, diff_id in layers])
        self.reference = f"{registry.address}/{_NAME}:{_TAG}"
        self.sizes = {str(fastpull.Digest.of(blob)): len(blob) for blob, _ in layers}
        self._tree: dict[bytes, FoundEntry] = {}
        self._squashfs = b""

    def served_by(self, registry: FaultyRegistry) -> Subject:
        """Return a copy of this subject in another registry."""
        registry.blobs.update(self.registry.blobs)
        registry.manifests.update(self.registry.manifests)
        found = copy(self)
        found.registry, found.reference = registry, f"{registry.address}/{_NAME}:{_TAG}"
        return found

    @property
    def size(self) -> int:
        """Return the compressed size of all layers."""
        return sum(self.sizes.values())

    def sent(self) -> int:
        """Return the number of layer bytes sent so far."""
        return sum(self.registry.sent[digest] for digest in self.sizes)

    async def prepare(self, folder: Path) -> None:
        """Pull once without faults."""
        for name in FORMS.values():
            await self.pull(folder / name, folder / "cache")
        self._tree = look(folder / "out")
        self._squashfs = (folder / "out.sqsh").read_bytes()

    async def pull(self, output: Path, cache: Path, *, workers: int = 2, access: Access = DEFAULT_ACCESS) -> None:
        """Pull in this process, and replace an existing output."""
        async with fastpull.Client(Settings(cache=str(cache), workers=workers, access=access)) as client:
            await self.pull_with(client, output)

    async def pull_with(self, client: fastpull.Client, output: Path) -> None:
        """Pull with a client, and replace an existing output."""
        await client.pull(self.reference, fastpull.sink_for(str(output), force=True))

    def check(self, output: Path) -> None:
        """Assert that an output is complete and correct."""
        if output.is_dir():
            found = look(output)
            wrong = [path for path in {**found, **self._tree} if found.get(path) != self._tree.get(path)]
            assert not wrong, f"{len(wrong)} paths differ, such as {wrong[0]!r}"
        else:
            assert output.read_bytes() == self._squashfs, "the squashfs image differs"

    def durable(self, cache: Path) -> int:
        """Return the number of layer bytes in a cache: whole blobs, and ranges in journals."""
        scratch, total = bytearray(1 << 20), 0
        for digest, size in self.sizes.items():
            algorithm, _, encoded = digest.partition(":")
            if (cache / "v1/blobs" / algorithm / encoded).exists():
                total += size
                continue
            partial = cache / "v1/partial" / algorithm / encoded
            extents = Extents()
            if (partial / "data").exists():
                with open(partial / "data", "rb") as data:
                    for record in parse_records(_content(partial / "journal"), size):
                        if matches(data.fileno(), record, scratch):
                            extents.add(record.offset, record.offset + record.length)
            total += extents.total
        return total

    async def recover(self, output: Path, cache: Path) -> int:
        """Assert a clean cache and a successful next pull, and return the number of bytes it fetched."""
        if (cache / "v1").exists():
            found = fastpull.cache.CacheManager(cache).verify(dry_run=True)
            assert found.is_sound, f"the cache is not clean: {found}"
        before = self.sent()
        await self.pull(output, cache)
        self.check(output)
        stray = [name for name in os.listdir(output.parent) if ".fastpull-" in name]
        assert not stray, f"unexpected files beside the output: {stray}"
        found = fastpull.cache.CacheManager(cache).verify()
        assert found.is_sound, f"the cache is not clean after the pull: {found}"
        usage = fastpull.cache.CacheManager(cache).usage()
        assert usage.partial == 0, f"{usage.partial} partial blobs remain"
        return self.sent() - before


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""
