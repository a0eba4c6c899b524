from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fastpull.cache.images.pins import Holder, Pins
from fastpull.cache.locking.owner import Owner
from fastpull.cache.maintenance.manager import CacheManager
from fastpull.cache.maintenance.reports import Removed
from fastpull.cache.refs import Ref
from fastpull.cache.store import Store
from fastpull.client import Client
from fastpull.config.settings import Settings
from fastpull.errors import CacheError, FastpullError, NotFound
from fastpull.oci.digest import Digest
from tests.support.layers import file, publish
from tests.support.registry import FaultyRegistry
from tests.unit.test_store import put


@pytest.fixture
def store(settings: Settings) -> Store:
    return Store(settings.cache)


@pytest.fixture
def cache(settings: Settings, store: Store) -> CacheManager:  # the store creates the directory
    return CacheManager(settings.cache)


def age(store: Store, digest: Digest, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(store.blob_path(digest), (then, then))


def present(store: Store) -> set[Digest]:
    return {blob.digest for blob in store.blobs()}


def test_gc_by_age_removes_entries_unused_for_so_long(store: Store, cache: CacheManager) -> None:
    old, new = put(store, b"old" * 100), put(store, b"new" * 100)
    age(store, old, 1000)
    removed = cache.collect(max_age_seconds=500)
    assert [blob.digest for blob in removed.blobs] == [old]
    assert removed.freed_bytes == 300
    assert present(store) == {new}


def test_gc_by_size_removes_the_least_recently_used_first(store: Store, cache: CacheManager) -> None:
    digests = [put(store, bytes([number]) * 100) for number in range(4)]
    for number, digest in enumerate(digests):
        age(store, digest, 1000 - number)
    cache.collect(max_size=250)
    assert present(store) == set(digests[2:])


def test_a_use_renews_the_age_of_a_blob(store: Store, cache: CacheManager) -> None:
    digest = put(store)
    age(store, digest, 1000)
    blob = store.find(digest)
    assert blob is not None
    blob.close()
    assert not cache.collect(max_age_seconds=500).blobs


def test_listing_does_not_count_as_use(store: Store, cache: CacheManager) -> None:
    digest = put(store)
    age(store, digest, 1000)
    cache.verify()
    cache.images()
    assert cache.collect(max_age_seconds=500).blobs


def test_a_dry_run_changes_nothing(store: Store, cache: CacheManager) -> None:
    digest = put(store)
    assert [blob.digest for blob in cache.collect(max_size=0, dry_run=True).blobs] == [digest]
    assert present(store) == {digest}


def test_gc_keeps_a_partial_blob_that_is_being_written(store: Store, cache: CacheManager) -> None:
    content = b"coming" * 1000
    digest = Digest.of(content)
    lock = store.lock(digest)
    assert lock.try_acquire()
    partial = store.begin(digest, len(content), lock)
    partial.write(0, [content[:100]])
    os.utime(partial.data_path, (0, 0))
    cache.collect(max_age_seconds=1)
    assert os.path.exists(partial.data_path)
    partial.close()
    cache.collect(max_age_seconds=1)
    assert not os.path.exists(partial.path)


def test_gc_removes_leftovers(store: Store, cache: CacheManager) -> None:
    digest = put(store)
    store.indexes.write(digest, b"index")
    store.remove(digest)
    store.indexes.write(digest, b"index of a blob that is gone")
    draft = os.path.join(store.root, "blobs/sha256/.draft.1.1")
    lock = os.path.join(store.root, "locks/sha256-dead")
    for path in (draft, lock):
        with open(path, "w"):
            os.utime(path, (0, 0))
    cache.collect()
    assert cache.usage().total_bytes == 0
    assert not os.path.exists(draft)
    assert not os.path.exists(lock)


def test_gc_removes_lock_drafts_of_dead_owners(store: Store, cache: CacheManager) -> None:
    program = "import sys; from fastpull.cache.locking.owner import Owner; "
    program += "sys.stdout.buffer.write(Owner.me(has_flock=True, is_suspect=False).to_bytes())"
    dead = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE).stdout
    contents = {".dead": dead, ".mine": Owner.me(has_flock=True, is_suspect=False).to_bytes(), ".unnamed": b""}
    for name, content in contents.items():
        Path(store.root, "locks", name).write_bytes(content)
    cache.collect()
    assert sorted(os.listdir(f"{store.root}/locks")) == [".mine", ".unnamed"]


def test_verify_finds_and_removes_every_damaged_blob(store: Store, cache: CacheManager) -> None:
    digests = [put(store, bytes([number]) * 5000) for number in range(5)]
    for digest in digests[1:4:2]:
        os.chmod(store.blob_path(digest), 0o600)
        with open(store.blob_path(digest), "r+b") as file_:
            file_.seek(4000)
            file_.write(b"X")
    assert cache.verify(dry_run=True).corrupt == sorted(digests[1:4:2], key=lambda digest: digest.encoded)
    found = cache.verify()
    assert (found.blobs, found.size, len(found.corrupt)) == (5, 25_000, 2)
    assert present(store) == {digests[0], digests[2], digests[4]}
    assert not cache.verify().corrupt


async def test_images_are_listed_and_removed_by_name(
    registry: FaultyRegistry, settings: Settings, cache: CacheManager, store: Store
) -> None:
    shared = [file("shared", b"s" * 5000)]
    one = publish(registry, shared, [file("one", b"1" * 5000)], name="test/one")
    two = publish(registry, shared, [file("two", b"2" * 5000)], name="test/two")
    async with Client(settings) as client:
        await client.warm([one, two])
    images = cache.images()
    assert {image.reference for image in images} == {one, two}
    assert all(image.present == image.size for image in images)
    removed = cache.remove(one)
    assert len(removed.blobs) == 3, "its own layer, config and manifest, but not the shared layer"
    assert [(image.reference, image.present == image.size) for image in cache.images()] == [(two, True)]
    assert cache.verify().blobs == 4


def test_removing_an_unknown_name_is_an_error(cache: CacheManager) -> None:
    for name in ("nothing:v1", "sha256:" + "a" * 64):
        with pytest.raises(NotFound, match="cache ls"):
            cache.remove(name)
    with pytest.raises(FastpullError) as caught:
        cache.remove("NO NAME")
    assert caught.value.exit_code == 3


def test_damaged_references_are_skipped(store: Store, cache: CacheManager) -> None:
    Ref.now("a/b:v1", "linux/amd64", Digest.of(b"x"), Digest.of(b"x")).save(store.files)
    store.files.write(f"{store.root}/refs/broken", b"{")
    store.files.write(f"{store.root}/refs/foreign", b'{"reference": 1}')
    assert cache.images() == []


def test_usage_counts_everything(store: Store, cache: CacheManager, tmp_path: Path) -> None:
    digest = put(store, b"x" * 1000)
    store.indexes.write(digest, b"i" * 10)
    other = put(store, b"y" * 500)
    store.remove(other)
    usage = cache.usage()
    assert (usage.blobs, usage.blob_bytes, usage.index_bytes, usage.trash_bytes) == (1, 1000, 18, 500)
    assert usage.total_bytes == 1518


def test_a_missing_cache_is_an_error_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="the first pull makes one.*mistyped"):
        CacheManager(tmp_path / "mistyped")
    assert list(tmp_path.iterdir()) == []


def test_gc_by_age_0_removes_partial_blobs_too(store: Store, cache: CacheManager) -> None:
    digest = Digest.of(b"x" * 100)
    lock = store.lock(digest)
    assert lock.try_acquire()
    partial = store.begin(digest, 100, lock)
    partial.write(0, [b"x"])
    partial.close()
    assert cache.usage().partial == 1
    cache.collect(max_age_seconds=0)
    assert cache.usage().partial == 0


async def test_one_of_two_references_to_an_image_can_be_removed(
    registry: FaultyRegistry, settings: Settings, cache: CacheManager
) -> None:
    one, two = (publish(registry, [file("a", b"x" * 100)], tag=tag) for tag in ("one", "two"))
    async with Client(settings) as client:
        await client.warm([one, two])
    removed = cache.remove(one)
    assert (removed.blobs, removed.freed_bytes) == ([], 0)
    assert [image.reference for image in cache.images()] == [two]
    assert len(cache.remove(two).blobs) == 3
    with pytest.raises(NotFound):
        cache.remove(two)


# --- damage of entries other than blobs


def flip(path: str | Path) -> None:
    """Change the middle byte of a file."""
    os.chmod(path, 0o600)
    with open(path, "r+b") as file_:
        file_.seek(os.path.getsize(path) // 2)
        byte = file_.read(1)[0]
        file_.seek(-1, os.SEEK_CUR)
        file_.write(bytes([byte ^ 1]))


def test_verify_finds_a_truncated_blob(store: Store, cache: CacheManager) -> None:
    digest = put(store, b"x" * 5000)
    os.chmod(store.blob_path(digest), 0o600)
    os.truncate(store.blob_path(digest), 4000)
    for dry_run in (True, False):
        assert cache.verify(dry_run=dry_run).corrupt == [digest]
    assert present(store) == set()


def test_a_dry_run_of_verify_keeps_a_damaged_index(store: Store, cache: CacheManager) -> None:
    digest = put(store)
    store.indexes.write(digest, b"index")
    flip(f"{store.root}/index/sha256/{digest.encoded}")
    for dry_run in (True, False):
        assert cache.verify(dry_run=dry_run).corrupt_indexes == [digest]
    assert cache.verify().is_sound


def test_verify_rewrites_damaged_metadata(store: Store, cache: CacheManager) -> None:
    digest = put(store)
    flip(store.blob_path(digest) + ".seal")
    for dry_run in (True, False):
        assert cache.verify(dry_run=dry_run).corrupt_seals == [digest]
    assert cache.verify().is_sound
    blob = store.find(digest)
    assert blob is not None
    assert blob.metadata is not None
    blob.close()


@pytest.mark.parametrize("name", ["data", "journal"])
def test_verify_keeps_the_sound_ranges_of_a_partial_blob(store: Store, cache: CacheManager, name: str) -> None:
    content = os.urandom(9000)
    digest = Digest.of(content)
    lock = store.lock(digest)
    assert lock.try_acquire()
    partial = store.begin(digest, len(content), lock)
    for start in (0, 3000, 6000):
        partial.write(start, [content[start : start + 3000]])
    flip(f"{partial.path}/{name}")
    assert cache.verify().is_sound, "somebody is writing it"
    partial.close()
    for dry_run in (True, False):
        assert cache.verify(dry_run=dry_run).corrupt_partials == [digest]
    assert cache.verify().is_sound
    assert lock.try_acquire()
    again = store.begin(digest, len(content), lock)
    assert again.gaps() == [(3000, 6000)]
    again.close()


def test_verify_removes_damaged_references(store: Store, cache: CacheManager) -> None:
    ref = Ref.now("a/b:v1", "linux/amd64", Digest.of(b"x"), Digest.of(b"x"))
    ref.save(store.files)
    flip(f"{store.root}/refs/{ref.name}")
    for dry_run in (True, False):
        assert cache.verify(dry_run=dry_run).corrupt_refs == [ref.name]
    assert os.listdir(f"{store.root}/refs") == []


def test_gc_removes_leftovers_of_a_kill_during_publication(store: Store, cache: CacheManager) -> None:
    """Metadata without its blob, and a journal whose data became a blob."""
    digest = Digest.of(b"x")
    seal, journal = Path(store.blob_path(digest) + ".seal"), Path(store.root, "partial/sha256", digest.encoded)
    journal.mkdir()
    (journal / "journal").write_bytes(b"")
    seal.write_bytes(b"")
    cache.collect()
    assert seal.exists(), "it may be somebody's who is at it"
    for path in (seal, journal):
        os.utime(path, (0, 0))
    cache.collect()
    assert not seal.exists()
    assert not journal.exists()


async def test_a_pull_by_tag_repairs_a_damaged_manifest(
    registry: FaultyRegistry, settings: Settings, cache: CacheManager, store: Store
) -> None:
    reference = publish(registry, [file("a")])
    async with Client(settings) as client:
        await client.warm([reference])
        manifest = cache.images()[0].digest
        flip(store.blob_path(manifest))
        await client.warm([reference])
    assert cache.verify().is_sound


async def test_the_documents_of_a_pinned_image_stay(
    registry: FaultyRegistry, settings: Settings, cache: CacheManager
) -> None:
    """Manifest, config and reference stay; the layers are removed."""
    reference, holder = publish(registry, [file("a", b"a" * 5000)]), Holder.here("1", "0")
    offline = replace(settings, pull="never")
    async with Client(settings) as client:
        image = await client.resolve(reference)
        finished = await client.ensure_squashfs(image, holder=holder)
    documents = {image.digest, image.manifest.config.digest}
    acts: list[Callable[[], Removed]] = [
        lambda: cache.collect(max_size=0, max_age_seconds=0),
        lambda: cache.remove(reference),
        lambda: cache.remove(str(image.digest)),
        lambda: cache.remove(str(image.manifest.config.digest)),
    ]
    for act in acts:
        removed = act()
        assert removed.pinned
        assert not documents & {blob.digest for blob in removed.blobs}
        assert {blob.digest for blob in cache.blobs()} == documents
        async with Client(offline) as client:
            assert (await client.ensure_squashfs(reference)).path == finished.path
    Pins(Store(settings.cache).files).release(holder)
    removed = cache.remove(reference)
    assert {blob.digest for blob in removed.blobs} == documents
    assert [gone.path for gone in removed.images] == [finished.path]
    assert not cache.images()
