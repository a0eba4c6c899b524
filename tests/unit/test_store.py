from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path

import pytest
import xxhash

from fastpull.cache import blob_metadata as seal_module
from fastpull.cache.blob_metadata import BlobMetadata
from fastpull.cache.maintenance.orphans import Orphans
from fastpull.cache.store import Store
from fastpull.errors import CacheError
from fastpull.oci.digest import Digest

CONTENT = b"content of a blob" * 1000
DIGEST = Digest.of(CONTENT)
FINGERPRINT = xxhash.xxh3_64_hexdigest(CONTENT)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "cache"))


def put(store: Store, content: bytes = CONTENT, *, sync: bool = False) -> Digest:
    digest = Digest.of(content)
    lock = store.lock(digest)
    assert lock.try_acquire()
    partial = store.begin(digest, len(content), lock)
    partial.write(0, [content])
    store.publish(partial, xxhash.xxh3_64_hexdigest(content), sync)
    return digest


def test_a_published_blob_is_found_and_reads_back(store: Store) -> None:
    put(store)
    blob = store.find(DIGEST)
    assert blob is not None
    buffer = bytearray(len(CONTENT) + 10)
    assert blob.readinto(memoryview(buffer), 0) == len(CONTENT)
    assert buffer[: len(CONTENT)] == CONTENT
    assert blob.metadata == BlobMetadata.now(len(CONTENT), FINGERPRINT, synced=False)
    blob.close()


def test_a_published_blob_is_read_only_and_leaves_nothing_else(store: Store, tmp_path: Path) -> None:
    put(store)
    assert stat.S_IMODE(os.stat(store.blob_path(DIGEST)).st_mode) == 0o400
    files = sorted(
        str(path.relative_to(tmp_path / "cache")) for path in (tmp_path / "cache").rglob("*") if path.is_file()
    )
    assert files == [f"v1/blobs/sha256/{DIGEST.encoded}", f"v1/blobs/sha256/{DIGEST.encoded}.seal"]


def test_the_root_is_private_and_a_shared_one_stays_shared(tmp_path: Path) -> None:
    Store(str(tmp_path / "mine"))
    assert stat.S_IMODE(os.stat(tmp_path / "mine").st_mode) == 0o700
    (tmp_path / "ours").mkdir()
    os.chmod(tmp_path / "ours", 0o2775)
    shared = Store(str(tmp_path / "ours"))
    put(shared)
    assert stat.S_IMODE(os.stat(tmp_path / "ours/v1/blobs/sha256").st_mode) == 0o2775
    assert stat.S_IMODE(os.stat(shared.blob_path(DIGEST)).st_mode) == 0o444


def test_a_missing_blob_is_a_miss(store: Store) -> None:
    assert store.find(DIGEST) is None
    assert store.read_document(DIGEST, 100) is None
    assert store.indexes.read(DIGEST) is None
    assert not store.remove(DIGEST)


def test_a_blob_that_contradicts_the_size_in_its_metadata_is_quarantined(store: Store) -> None:
    put(store)
    os.chmod(store.blob_path(DIGEST), 0o600)
    os.truncate(store.blob_path(DIGEST), 10)
    assert store.find(DIGEST) is None
    assert store.is_missing(DIGEST)
    assert Orphans(store).size_of("trash") == 10


def test_an_open_blob_stays_readable_after_removal(store: Store) -> None:
    put(store)
    blob = store.find(DIGEST)
    assert blob is not None
    assert store.remove(DIGEST)
    assert Orphans(store).empty_trash() == len(CONTENT)
    assert blob.readinto(memoryview(bytearray(10)), 0) == 10
    blob.close()


def test_a_corrupt_document_is_a_miss_and_quarantined(store: Store) -> None:
    store.write_document(DIGEST, CONTENT, FINGERPRINT, sync=False)
    assert store.read_document(DIGEST, 1 << 20) == CONTENT
    path = store.blob_path(DIGEST)
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        file.write(b"X")
    assert store.read_document(DIGEST, 1 << 20) is None
    assert store.is_missing(DIGEST)


def test_a_symbolic_link_in_place_of_a_blob_is_removed(store: Store, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(CONTENT)
    os.symlink(tmp_path / "elsewhere", store.blob_path(DIGEST))
    assert store.find(DIGEST) is None
    assert not os.path.lexists(store.blob_path(DIGEST))
    assert (tmp_path / "elsewhere").read_bytes() == CONTENT


# --- metadata: what may be trusted after a power cut


def rewrite_metadata(store: Store, **fields: object) -> None:
    values = {
        "size": len(CONTENT),
        "fingerprint": FINGERPRINT,
        "synced": False,
        "boot": seal_module.boot_id(),
        **fields,
    }
    path = store.blob_path(DIGEST) + ".seal"
    os.chmod(path, 0o600)
    with open(path, "wb") as file:
        file.write(BlobMetadata(**values).to_bytes())  # type: ignore[arg-type]


def is_fresh(store: Store) -> bool:
    blob = store.find(DIGEST)
    assert blob is not None
    blob.close()
    return blob.metadata is not None and blob.metadata.is_fresh


def test_the_metadata_of_this_boot_is_trusted(store: Store) -> None:
    put(store)
    assert is_fresh(store)


def test_the_metadata_of_an_earlier_boot_is_trusted_only_if_synced(store: Store) -> None:
    put(store)
    rewrite_metadata(store, boot="another")
    assert not is_fresh(store)
    rewrite_metadata(store, boot="another", synced=True)
    assert is_fresh(store)


def test_refreshed_metadata_is_trusted_again(store: Store) -> None:
    put(store)
    rewrite_metadata(store, boot="another")
    blob = store.find(DIGEST)
    assert blob is not None
    store.refresh_metadata(blob, FINGERPRINT)
    blob.close()
    assert is_fresh(store)


@pytest.mark.parametrize("boot", ["this", "another"])
def test_an_existing_blob_is_synced_on_demand(store: Store, monkeypatch: pytest.MonkeyPatch, boot: str) -> None:
    put(store)
    if boot == "another":
        rewrite_metadata(store, boot=boot)
    synced = list[int]()
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.fstat(fd).st_ino))
    blob = store.find(DIGEST)
    assert blob is not None
    store.refresh_metadata(blob, FINGERPRINT, sync=True)
    blob.close()
    # data that survived a boot is on disk
    assert synced == ([os.stat(store.blob_path(DIGEST)).st_ino] if boot == "this" else [])
    after = store.find(DIGEST)
    assert after is not None
    after.close()
    assert after.metadata == BlobMetadata.now(len(CONTENT), FINGERPRINT, synced=True)


@pytest.mark.parametrize(("number", "is_told"), [(errno.EIO, True), (errno.EDQUOT, True), (errno.EROFS, False)])
def test_metadata_that_cannot_be_synced_is_an_error_if_sync_is_demanded(
    store: Store, monkeypatch: pytest.MonkeyPatch, number: int, is_told: bool
) -> None:
    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    put(store)
    blob = store.find(DIGEST)
    assert blob is not None
    monkeypatch.setattr(os, "fsync", fail)
    store.refresh_metadata(blob, FINGERPRINT)
    with pytest.raises(CacheError) if is_told else contextlib.nullcontext():
        store.refresh_metadata(blob, FINGERPRINT, sync=True)
    blob.close()


@pytest.mark.parametrize("content", [b"", b"{}", b"null", b"[1]", b'{"size": "1"}', b"\xff"])
def test_damaged_metadata_counts_as_missing(store: Store, content: bytes) -> None:
    put(store)
    os.chmod(store.blob_path(DIGEST) + ".seal", 0o600)
    with open(store.blob_path(DIGEST) + ".seal", "wb") as file:
        file.write(content)
    assert not is_fresh(store)


def test_sync_is_recorded_in_the_metadata(store: Store) -> None:
    put(store, sync=True)
    blob = store.find(DIGEST)
    assert blob is not None
    assert blob.metadata is not None
    assert blob.metadata.synced
    blob.close()


def test_an_unwritable_cache_is_a_cache_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CacheError) as caught:
        Store(str(tmp_path / "file"))
    assert caught.value.exit_code == 30
    assert str(tmp_path / "file") in str(caught.value)


def test_directories_deleted_under_a_running_client_are_recreated(store: Store) -> None:
    shutil.rmtree(os.path.join(store.root, "partial"))
    shutil.rmtree(os.path.join(store.root, "index"))
    digest = put(store)
    store.indexes.write(digest, b"index")
    assert store.indexes.read(digest) == b"index"
    assert store.find(digest) is not None


def test_publication_and_removal_are_logged(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "fastpull.cache.store")
    put(store)
    store.remove(DIGEST)
    assert caplog.messages == [
        f"published blob {DIGEST}, {len(CONTENT)} bytes",
        f"removed blob {DIGEST}: removed",
    ]
