"""Close-to-open consistency: a file is closed before it is published, because a network filesystem flushes at close."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastpull.cache.files import CacheFiles
from fastpull.cache.store import Store
from fastpull.oci.digest import Digest


@pytest.fixture
def dirty(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, int]]:
    """Files, by device and inode, that have been written to and not closed since: no other node sees all of them.

    Whoever gives such a file a name fails.
    """
    unseen: set[tuple[int, int]] = set()
    real = {name: getattr(os, name) for name in ("pwrite", "pwritev", "write", "close", "rename", "link")}

    def key(what: int | str, folder: int | None = None) -> tuple[int, int]:
        state = os.stat(what, dir_fd=folder)
        return state.st_dev, state.st_ino

    def writing(name: str) -> object:
        def write(fd: int, *arguments: object) -> object:
            unseen.add(key(fd))
            return real[name](fd, *arguments)

        return write

    def close(fd: int) -> None:
        unseen.discard(key(fd))
        real["close"](fd)

    def naming(name: str) -> object:
        def give(source: str, target: str, **places: int) -> object:
            assert key(source, places.get("src_dir_fd")) not in unseen, f"{target} is not what other nodes see"
            return real[name](source, target, **places)

        return give

    for name in ("pwrite", "pwritev", "write"):
        monkeypatch.setattr(os, name, writing(name))
    monkeypatch.setattr(os, "close", close)
    for name in ("rename", "link"):
        monkeypatch.setattr(os, name, naming(name))
    return unseen


def test_every_node_sees_the_owner_of_a_lock(tmp_path: Path, dirty: set[tuple[int, int]]) -> None:
    lock = CacheFiles(str(tmp_path)).lock("one")
    assert lock.try_acquire()
    assert not dirty
    lock.release()


def test_every_node_sees_the_whole_blob(tmp_path: Path, dirty: set[tuple[int, int]]) -> None:
    store, content = Store(str(tmp_path)), b"content" * 1000
    digest = Digest.of(content)
    lock = store.lock(digest)
    assert lock.try_acquire()
    partial = store.begin(digest, len(content), lock)
    partial.write(0, [content])
    assert dirty, "it is being written"
    store.publish(partial, "0" * 16, sync=False)
    assert store.find(digest) is not None
