"""A cache made by an earlier version is used as it is. No name and no format of the cache may change within ``v1``.

``cache_v1.tar.xz`` holds such a cache. Commit 5f31588 made it: one image of two layers, built as a finished image and
pinned by a job step, and a partial blob of 2,048 bytes of which two ranges had been written.
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from fastpull import Client, Directory
from fastpull.cache.images.pins import Holder, Pins
from fastpull.cache.images.store import ImageStore
from fastpull.cache.maintenance.manager import CacheManager
from fastpull.cache.refs import Ref
from fastpull.cache.store import Store
from fastpull.config.settings import Settings
from fastpull.layers.index import LayerIndex
from fastpull.oci.digest import Digest

ARCHIVE = Path(__file__).with_name("cache_v1.tar.xz")
REFERENCE = "127.0.0.1:40211/test/image:v1"
MANIFEST = Digest.parse("sha256:c4bbf29ed6d9ec1ddd01edc0681575d7fe21c4358baff7511046dc8bc6c5a89d")
LAYERS = [
    Digest.parse("sha256:f0908604c308db6bbee5b2a12e901e86215a769334eda2385f8800b985f41d46"),
    Digest.parse("sha256:4473be8d7bdb3e63bc8ed510fc9309a20851e9cde599e8eaa6756cba107ccc2e"),
]
PARTIAL = bytes(range(256)) * 8
HOLDER = Holder("node1", "4711", "0")
FOREVER = float("inf")


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A copy of the cache that belongs to this user."""
    root = tmp_path / "cache"
    root.mkdir(mode=0o700)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(root, filter="data")
    return str(root)


@pytest.fixture
def store(root: str) -> Store:
    return Store(root)


def test_old_blobs_are_found_with_their_metadata(store: Store) -> None:
    assert len(list(store.blobs())) == 4
    for stored in store.blobs():
        blob = store.find(stored.digest)
        assert blob is not None
        assert blob.metadata is not None
        assert (blob.metadata.size, blob.metadata.synced, blob.metadata.is_fresh) == (stored.size, True, True)
        blob.close()


def test_old_indexes_are_read(store: Store) -> None:
    assert set(store.indexes) == set(LAYERS)
    paths = []
    for digest in LAYERS:
        content = store.indexes.read(digest)
        assert content is not None
        paths.append(list(LayerIndex.from_bytes(content).paths()))
    assert paths == [[b"etc", b"etc/hostname"], [b"hello"]]


def test_an_old_reference_is_resolved(store: Store) -> None:
    ref = Ref.find(store.files, REFERENCE, "linux/amd64")
    assert ref is not None
    assert (ref.manifest, ref.top) == (MANIFEST, MANIFEST)


async def test_an_old_image_is_pulled_without_a_registry(root: str, tmp_path: Path) -> None:
    settings = Settings.load({}, cache=root, pull="never", workers=2)
    async with Client(settings) as client:
        await client.pull(REFERENCE, Directory(tmp_path / "rootfs"), platform="linux/amd64")
    assert (tmp_path / "rootfs/hello").read_text() == "hello\n" * 10


def test_an_old_partial_blob_is_resumed(store: Store) -> None:
    digest = Digest.of(PARTIAL)
    assert store.has_partial(digest)
    lock = store.lock(digest)
    assert lock.try_acquire()
    partial = store.begin(digest, len(PARTIAL), lock)
    assert partial.resumed == 1024
    assert partial.gaps() == [(512, 1024), (1536, 2048)]
    for start, stop in partial.gaps():
        partial.write(start, [PARTIAL[start:stop]])
    buffer = bytearray(len(PARTIAL))
    assert partial.readinto(memoryview(buffer), 0) == len(buffer)
    assert buffer == PARTIAL
    partial.close()


@pytest.mark.parametrize("is_untouched", [True, False], ids=["same time of modification", "another one"])
def test_an_old_finished_image_is_found_by_its_key(store: Store, is_untouched: bool) -> None:
    images = ImageStore(store.files)
    (image,) = images.all()
    assert image.key.manifest == MANIFEST
    assert image.source == REFERENCE
    if is_untouched:
        os.utime(image.path, ns=(image.mtime_ns, image.mtime_ns))
    found = images.find(image.key)
    assert found is not None
    assert (found.path, found.size, found.metadata.synced) == (image.path, image.size, True)
    assert Path(found.path).read_bytes()[:4] == b"hsqs"


def test_an_old_pin_keeps_its_image(root: str, store: Store) -> None:
    (image,) = ImageStore(store.files).all()
    assert {name: [pin.holder for pin in pins] for name, pins in Pins(store.files).active(FOREVER).items()} == {
        image.key.name: [HOLDER]
    }
    removed = CacheManager(root).collect(max_size=0, max_pin_seconds=FOREVER)
    assert removed.pinned == [image.path]
    assert os.path.exists(image.path)
    Pins(store.files).release(HOLDER)
    assert CacheManager(root).collect(max_size=0, max_pin_seconds=FOREVER).images[0].path == image.path


def test_an_old_cache_is_listed_and_verified(root: str) -> None:
    cache = CacheManager(root)
    assert [(image.reference, image.digest, image.present) for image in cache.images()] == [
        (REFERENCE, MANIFEST, cache.images()[0].size)
    ]
    found = cache.verify()
    assert found.is_sound
    assert (found.blobs, found.images) == (4, 1)
