from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from fastpull.cache.partial.blob import PartialBlob
from fastpull.cache.partial.journal import Record, parse_records
from fastpull.cache.store import Store
from fastpull.concurrency.threads import Aborted
from fastpull.errors import CacheError
from fastpull.oci.digest import Digest

CONTENT = os.urandom(100_000)
DIGEST = Digest.of(CONTENT)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "cache"))


def begin(store: Store, size: int = len(CONTENT)) -> PartialBlob:
    lock = store.lock(DIGEST)
    assert lock.try_acquire()
    return store.begin(DIGEST, size, lock)


def read_all(partial: PartialBlob) -> bytes:
    found, buffer = b"", memoryview(bytearray(7_777))
    while size := partial.readinto(buffer, len(found)):
        found += buffer[:size]
    return found


def test_ranges_written_in_any_order_read_from_the_front(store: Store) -> None:
    partial = begin(store)
    for start in (50_000, 0, 75_000, 25_000):
        partial.write(start, [CONTENT[start : start + 12_500], CONTENT[start + 12_500 : start + 25_000]])
    assert partial.gaps() == []
    assert read_all(partial) == CONTENT
    partial.close()


def test_a_reader_waits_for_the_bytes_at_its_position(store: Store) -> None:
    partial = begin(store)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(read_all(partial)))
    reader.start()
    partial.write(60_000, [CONTENT[60_000:]])
    partial.write(0, [CONTENT[:30_000]])
    reader.join(0.05)
    assert reader.is_alive(), "there is a gap before the end"
    partial.write(30_000, [CONTENT[30_000:60_000]])
    reader.join(5)
    assert found == [CONTENT]
    partial.close()


def test_a_failure_ends_reading_even_if_bytes_are_present(store: Store) -> None:
    partial = begin(store)
    partial.write(0, [CONTENT[:10]])
    partial.fail(CacheError("x", "no more"))
    for offset in (0, 10):
        with pytest.raises(CacheError, match="no more"):
            partial.readinto(memoryview(bytearray(100)), offset)
    partial.close()


def test_resume_takes_over_written_ranges(store: Store) -> None:
    first = begin(store)
    first.write(20_000, [CONTENT[20_000:30_000]])
    first.write(0, [CONTENT[:5_000]])
    first.close()
    second = begin(store)
    assert second.resumed == 15_000
    assert second.gaps() == [(5_000, 20_000), (30_000, 100_000)]
    second.close()


@pytest.mark.root
@pytest.mark.parametrize("foreign", ["data", "journal", "both"])
def test_the_data_of_another_user_is_copied_and_not_written_to(store: Store, foreign: str) -> None:
    first = begin(store)
    first.write(0, [CONTENT[:5_000]])
    first.write(20_000, [CONTENT[20_000:30_000]])
    first.close()
    theirs = [path for path in (first.data_path, first.journal_path) if foreign in (os.path.basename(path), "both")]
    for path in theirs:
        os.chown(path, 65534, 65534)
    opened = [os.open(path, os.O_RDONLY) for path in theirs]
    before = [(os.pread(fd, 1 << 20, 0), os.fstat(fd).st_mtime_ns) for fd in opened]
    second = begin(store)
    assert second.gaps() == [(5_000, 20_000), (30_000, 100_000)]
    second.write(5_000, [CONTENT[5_000:20_000]])
    second.write(30_000, [CONTENT[30_000:]])
    assert [(os.pread(fd, 1 << 20, 0), os.fstat(fd).st_mtime_ns) for fd in opened] == before
    for fd in opened:
        os.close(fd)
    assert {os.stat(path).st_uid for path in (second.data_path, second.journal_path)} == {os.geteuid()}
    store.publish(second, "0" * 16, sync=False)
    with open(store.blob_path(DIGEST), "rb") as blob:
        assert blob.read() == CONTENT


@pytest.mark.root
def test_an_aborted_copy_leaves_the_original(store: Store) -> None:
    first = begin(store)
    first.write(0, [CONTENT[:5_000]])
    first.close()
    os.chown(first.data_path, 65534, 65534)
    lock = store.lock(DIGEST)
    assert lock.try_acquire()
    with pytest.raises(Aborted):
        store.begin(DIGEST, len(CONTENT), lock, lambda: True)
    assert not lock.held
    assert sorted(os.listdir(first.path)) == ["data", "journal"]
    assert os.stat(first.data_path).st_uid == 65534
    begin(store).close()


def test_a_torn_last_record_costs_only_its_range(store: Store) -> None:
    first = begin(store)
    first.write(0, [CONTENT[:5_000]])
    first.write(5_000, [CONTENT[5_000:9_000]])
    first.close()
    with open(first.journal_path, "r+b") as journal:
        journal.truncate(32 + 11)
    second = begin(store)
    assert second.gaps() == [(5_000, 100_000)]
    second.write(5_000, [CONTENT[5_000:9_000]])
    second.close()
    assert begin(store).gaps() == [(9_000, 100_000)], "the torn record must not hide what follows it"


def test_a_damaged_record_is_ignored(store: Store) -> None:
    first = begin(store)
    first.write(0, [CONTENT[:5_000]])
    first.close()
    with open(first.journal_path, "r+b") as journal:
        journal.seek(8)
        journal.write(b"\xff")
    assert begin(store).resumed == 0


def test_a_range_that_the_disk_lost_is_fetched_again(store: Store) -> None:
    first = begin(store)
    first.write(0, [CONTENT[:5_000]])
    first.write(5_000, [CONTENT[5_000:10_000]])
    first.close()
    with open(first.data_path, "r+b") as data:
        data.seek(6_000)
        data.write(b"\0" * 100)
    assert begin(store).gaps() == [(5_000, 100_000)]


def test_records_beyond_the_blob_are_ignored(store: Store) -> None:
    first = begin(store)
    first.close()
    os.makedirs(first.path, exist_ok=True)
    with open(first.journal_path, "wb") as journal:
        journal.write(Record(99_990, 20, 1).to_bytes() + Record(0, 1 << 63, 1).to_bytes())
    assert begin(store).resumed == 0


@pytest.mark.slow
def test_overlapping_records_are_read_once() -> None:
    records = [Record(offset, length, 1) for offset, length in [(50, 10), (0, 20), (55, 30), (10, 5), (60, 1), (0, 20)]]
    found = parse_records(b"".join(record.to_bytes() for record in records), 100)
    assert [(record.offset, record.length) for record in found] == [(0, 20), (50, 10), (60, 1)]
    many = b"".join(Record(2 * number, 1, 1).to_bytes() for number in reversed(range(200_000)))
    began = time.process_time()
    assert len(parse_records(many, 1 << 20)) == 200_000
    assert time.process_time() - began < 20


def test_there_is_one_partial_blob_at_a_time(store: Store) -> None:
    partial = begin(store)
    assert not store.lock(DIGEST).try_acquire()
    partial.close()
    lock = store.lock(DIGEST)
    assert lock.try_acquire()
    lock.release()


def test_too_little_space_is_an_error_before_the_download(store: Store) -> None:
    with pytest.raises(CacheError, match="no space left.*are missing") as caught:
        begin(store, size=1 << 60)
    assert caught.value.exit_code == 30
    lock = store.lock(DIGEST)
    assert lock.try_acquire(), "the lock is free again"
    lock.release()


def test_a_full_disk_is_a_cache_error_and_records_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = begin(store)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fastpull.cache.partial.blob.os.pwritev", full)
    with pytest.raises(CacheError, match="no space left on device.*Free some space"):
        partial.write(0, [CONTENT[:100]])
    assert partial.gaps() == [(0, len(CONTENT))]
    monkeypatch.undo()
    partial.close()


def test_an_empty_blob_is_complete_at_once(store: Store) -> None:
    partial = begin(store, size=0)
    assert partial.gaps() == []
    assert partial.readinto(memoryview(bytearray(10)), 0) == 0
    partial.close()


def test_present_ranges_are_never_written_again(store: Store) -> None:
    partial = begin(store)
    partial.write(1000, [CONTENT[1000:2000]])
    for offset, size in ((0, 1001), (1999, 1), (1500, 10), (0, 5000)):
        with pytest.raises(ValueError, match="already present"):
            partial.write(offset, [b"x" * size])
    partial.write(0, [CONTENT[:1000]])
    partial.write(2000, [CONTENT[2000:]])
    assert read_all(partial) == CONTENT
    partial.close()


def test_resume_can_be_aborted(store: Store) -> None:
    partial = begin(store)
    partial.write(0, [CONTENT[:1000]])
    partial.close()
    lock = store.lock(DIGEST)
    assert lock.try_acquire()
    with pytest.raises(Aborted):
        store.begin(DIGEST, len(CONTENT), lock, lambda: True)
    assert not lock.held
    assert begin(store).resumed == 1000


def test_a_journal_is_replaced_atomically(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill during the removal of a damaged record loses no sound one."""
    first = begin(store)
    for start in (0, 5_000):
        first.write(start, [CONTENT[start : start + 5_000]])
    first.close()
    with open(first.journal_path, "r+b") as journal:
        journal.write(b"\xff")

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            begin(store)
    second = begin(store)
    assert second.gaps() == [(0, 5_000), (10_000, 100_000)]
    second.close()


@pytest.mark.parametrize("left", [(), ("data",), ("journal",), ("data", "journal")])
def test_the_files_of_a_silent_owner_are_taken_over_whichever_exist(store: Store, left: tuple[str, ...]) -> None:
    earlier = begin(store)
    earlier.write(0, [CONTENT[:40_000]])
    earlier.close()
    for name in {"data", "journal"} - set(left):
        os.unlink(f"{earlier.path}/{name}")
    before = {name: os.stat(f"{earlier.path}/{name}").st_ino for name in left}
    lock = store.lock(DIGEST)
    assert lock.try_acquire()
    lock.is_suspect = True  # as after an expired lease
    partial = store.begin(DIGEST, len(CONTENT), lock)
    assert partial.resumed == (40_000 if len(left) == 2 else 0)
    after = {name: os.stat(f"{partial.path}/{name}").st_ino for name in left}
    assert all(after[name] != before[name] for name in left), "somebody may still write to what there was"
    for start, stop in partial.gaps():
        partial.write(start, [CONTENT[start:stop]])
    assert read_all(partial) == CONTENT
    partial.close()
    assert begin(store).resumed == len(CONTENT)


def test_a_representation_tells_what_is_present(store: Store) -> None:
    partial = begin(store)
    partial.write(1000, [CONTENT[1000:3000]])
    assert repr(partial) == f"<PartialBlob {DIGEST}: 2000 of 100000 bytes, 2 gaps, open>"
    partial.close()
    assert repr(partial) == f"<PartialBlob {DIGEST}: 2000 of 100000 bytes, 2 gaps, closed>"
