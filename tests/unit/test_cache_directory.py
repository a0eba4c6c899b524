"""Hostile entries in place of a cache's directories and files: nothing outside the cache is touched."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import fastpull
from fastpull.cache.directory import CacheDirectory, NotAFile
from fastpull.cache.files import CacheFiles
from fastpull.cache.images.store import ImageStore
from fastpull.cache.refs import Ref
from fastpull.config.settings import Settings
from fastpull.errors import CacheError, FastpullError
from fastpull.oci.digest import Digest
from tests.support.layers import file, publish
from tests.support.processes import run
from tests.support.registry import FaultyRegistry
from tests.support.trees import look

DIRECTORIES = (
    "",
    "blobs",
    "blobs/sha256",
    "partial",
    "partial/sha256",
    "partial/sha256/BLOB",
    "index",
    "checkpoints",
    "index/sha256",
    "images",
    "images/sha256",
    "images/user-0",
    "pins",
    "refs",
    "refs/user-0",
    "answers",
    "answers/user-0",
    "locks",
    "trash",
)


def link(path: Path, canary: Path) -> None:
    path.symlink_to(canary)


def fifo(path: Path, _: Path) -> None:
    os.mkfifo(path)


def device(path: Path, _: Path) -> None:
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero is endless


def another_users(path: Path, _: Path) -> None:
    path.mkdir()
    (path / "file").write_bytes(b"theirs")
    for each in (path / "file", path):
        os.chown(each, 65533, 65533)


def regular_file(path: Path, _: Path) -> None:
    path.write_bytes(b"in the way")


Plant = Callable[[Path, Path], None]


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A directory outside the cache that looks like every directory of a cache, with files that gc would remove."""
    directory = tmp_path / "canary"
    for inner in ("", *DIRECTORIES, "sha256", "trash"):
        (directory / inner).mkdir(parents=True, exist_ok=True)
        for name in ("a" * 64, "b" * 64 + ".seal", ".draft.1.1", "data", "journal", "x.sqsh"):
            (directory / inner / name).write_bytes(b"canary")
            os.utime(directory / inner / name, (0, 0))
    return directory


async def use(cache: Path, reference: str, output: Path) -> None:
    """Do everything with a cache; typed errors are allowed."""
    settings = Settings(cache=str(cache), workers=2, keep_images=True)
    with contextlib.suppress(FastpullError):
        async with asyncio.timeout(60), fastpull.Client(settings) as client:
            await client.pull(reference, output)
    for act in (
        fastpull.cache.CacheManager.usage,
        fastpull.cache.CacheManager.verify,
        fastpull.cache.CacheManager.images,
        lambda cache: cache.remove(reference),
        lambda cache: cache.collect(max_size=0, max_age_seconds=0),
    ):
        with contextlib.suppress(FastpullError):
            act(fastpull.cache.CacheManager(cache))


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize(
    ("plant", "mode"),
    [
        (link, 0o700),
        (link, 0o2777),
        (fifo, 0o2777),
        (device, 0o2777),
        (another_users, 0o2777),
        (another_users, 0o700),
        (regular_file, 0o2777),
    ],
)
async def test_entries_in_place_of_a_directory_lead_nowhere(
    registry: FaultyRegistry, tmp_path: Path, canary: Path, plant: Plant, mode: int
) -> None:
    reference = publish(registry, [file("a", b"content" * 1000)])
    blob = next(iter(registry.blobs)).removeprefix("sha256:")
    before = look(canary)
    for number, directory in enumerate(DIRECTORIES):
        cache = tmp_path / f"cache-{number}"
        cache.mkdir()
        cache.chmod(mode)
        place = Path(os.path.join(cache, "v1", directory.replace("BLOB", blob)))
        CacheFiles(str(cache))
        if place.exists():
            shutil.rmtree(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        plant(place, canary)
        await use(cache, reference, tmp_path / f"output-{number}.sqsh")
        assert look(canary) == before, directory


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize(
    "directory", ["", "blobs/sha256", "partial/sha256/BLOB", "index", "refs/user-0", "answers", "locks", "trash"]
)
async def test_entries_in_place_of_a_directory_lead_nowhere_for_a_plain_user(
    registry: FaultyRegistry, tmp_path: Path, canary: Path, directory: str
) -> None:
    reference = publish(registry, [file("a", b"content" * 1000)])
    directory = directory.replace("BLOB", next(iter(registry.blobs)).removeprefix("sha256:")).replace("-0", "-65534")
    for each in (tmp_path, *tmp_path.parents[:3]):
        each.chmod(0o755)
    for path in (canary, *canary.rglob("*")):
        os.chown(path, 65534, 65534)
    before = look(canary)
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o2777)
    place = Path(os.path.join(cache, "v1", directory))
    os.umask(0)
    place.parent.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)
    place.symlink_to(canary)
    for arguments in (("warm", reference), ("cache", "verify"), ("cache", "gc", "--max-size", "0", "--max-age", "0s")):
        ended = await run(*arguments, cache=str(cache), as_nobody=True)
        assert "Traceback" not in ended.err, ended.err
    assert look(canary) == before


@pytest.mark.root
@pytest.mark.parametrize(("mode", "is_let_in"), [(0o700, False), (0o755, False), (0o2770, True), (0o777, True)])
def test_a_directory_of_another_user_counts_only_in_a_shared_cache(tmp_path: Path, mode: int, is_let_in: bool) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(mode)
    CacheFiles(str(cache))
    os.chown(cache / "v1/blobs", 65533, 65533)
    with contextlib.nullcontext() if is_let_in else pytest.raises(CacheError, match="belongs to user 65533"):
        CacheFiles(str(cache))


@pytest.mark.root
def test_the_owner_of_a_cache_is_trusted_in_it(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    CacheFiles(str(cache))
    for path in (cache, cache / "v1", cache / "v1/blobs"):
        os.chown(path, 65533, 65533)
    CacheFiles(str(cache))


def test_a_directory_with_more_write_permissions_than_the_cache_is_refused(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o755)
    CacheFiles(str(cache))
    (cache / "v1/refs").chmod(0o777)
    with pytest.raises(CacheError, match="more users may write to this directory"):
        CacheFiles(str(cache))
    cache.chmod(0o700)  # no other user can enter it
    CacheFiles(str(cache))


@pytest.mark.parametrize("plant", [fifo, link, Path.mkdir])
def test_an_entry_that_is_not_a_regular_file_is_not_opened(tmp_path: Path, plant: Callable[..., None]) -> None:
    plant(tmp_path / "it", *([tmp_path] if plant is not Path.mkdir else []))
    with CacheDirectory.at(str(tmp_path)) as directory:
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
            if plant is fifo or flags == os.O_RDWR:
                with pytest.raises(NotAFile):
                    directory.open("it", flags)
        assert directory.read("it", 100) is None


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(b"")
    os.truncate(tmp_path / "it", 1 << 40)
    with CacheDirectory.at(str(tmp_path)) as directory:
        assert directory.read("it", 1 << 20) is None
        os.truncate(tmp_path / "it", 1 << 20)
        found = directory.read("it", 1 << 20)
        assert found is not None
        assert len(found[0]) == 1 << 20


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    files = CacheFiles(str(tmp_path))
    files.write(files.root + "/refs/a", b"a")
    assert files.read(files.root + "/refs/a") == b"a"
    assert files.read(files.root + "/refs/b") is None
    with pytest.raises(CacheError):
        files.write(files.root + "/refs/a/b", b"a")
    assert files.move_to_trash(files.root + "/refs/a", "gone")
    assert len(os.listdir("/proc/self/fd")) == before


# --- entries that count because of their author


@pytest.fixture
def shared(tmp_path: Path) -> CacheFiles:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o2777)
    return CacheFiles(str(cache))


@pytest.mark.root
def test_a_reference_of_another_user_does_not_count(shared: CacheFiles, tmp_path: Path) -> None:
    """Neither a file that they wrote, nor a file of this user that they renamed."""
    digest = Digest.of(b"a")
    ref = Ref.now("docker.io/library/debian:12", "linux/amd64", digest, digest)
    ref.save(shared)
    assert Ref.find(shared, ref.reference, ref.platform) == ref
    (kept,) = Path(shared.root, "refs/user-0").iterdir()
    assert stat.S_IMODE(kept.parent.stat().st_mode) & 0o777 == 0o755, "nobody else can rename what is in it"
    os.chown(kept, 65533, 65533)
    assert Ref.find(shared, ref.reference, ref.platform) is None
    os.chown(kept, 0, 0)
    kept.rename(kept.with_name(replace(ref, reference="docker.io/library/alpine:3").name))
    assert Ref.find(shared, "docker.io/library/alpine:3", ref.platform) is None
    os.link(next(kept.parent.iterdir()), Path(shared.root, "refs", ref.name))
    assert Ref.find(shared, ref.reference, ref.platform) is None, "a file of ours under a name that others gave it"
    private = CacheFiles(str(tmp_path / "private"))
    ref.save(private)
    os.chown(Path(private.root, "refs", ref.name), 65533, 65533)
    assert Ref.find(private, ref.reference, ref.platform) is None


@pytest.mark.root
def test_the_reference_of_the_cache_s_owner_counts(shared: CacheFiles, tmp_path: Path) -> None:
    digest = Digest.of(b"a")
    ref = Ref.now("docker.io/library/debian:12", "linux/amd64", digest, digest)
    ref.save(shared)
    directory = Path(shared.root, "refs/user-0")
    for path in (*directory.iterdir(), directory, Path(shared.root).parent):
        os.chown(path, 65533, 65533)
    directory.rename(directory.with_name("user-65533"))
    assert Ref.find(CacheFiles(str(Path(shared.root).parent)), ref.reference, ref.platform) == ref


@pytest.mark.root
def test_a_user_directory_created_by_another_user_is_replaced(shared: CacheFiles) -> None:
    directory = Path(shared.root, "refs/user-0")
    directory.mkdir()
    os.chown(directory, 65533, 65533)
    digest = Digest.of(b"a")
    ref = Ref.now("docker.io/library/debian:12", "linux/amd64", digest, digest)
    assert Ref.find(shared, ref.reference, ref.platform) is None
    ref.save(shared)
    assert directory.stat().st_uid == 0
    assert Ref.find(shared, ref.reference, ref.platform) == ref


@pytest.mark.root
async def test_renaming_creates_no_finished_image(registry: FaultyRegistry, tmp_path: Path) -> None:
    """Blobs of this user with content chosen by others, renamed to an image and its metadata."""
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o2777)
    settings = Settings(cache=str(cache), workers=2, keep_images=True)
    reference = publish(registry, [file("a", b"content")])
    async with fastpull.Client(settings) as client:
        await client.pull(reference, tmp_path / "first.sqsh")
    (image,) = ImageStore(CacheFiles(str(cache))).all()
    place = Path(image.path)
    assert place.parent == cache / "v1/images/user-0"
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    good = place.read_bytes()
    for ending in ("", ".seal"):  # files of this user, valid except for their directory
        os.rename(f"{place}{ending}", f"{cache}/v1/images/sha256/{place.name}{ending}")
    async with fastpull.Client(replace(settings, keep_images=False)) as client:
        report = await client.pull(reference, tmp_path / "second.sqsh")
    assert not report.was_finished
    assert (tmp_path / "second.sqsh").read_bytes() == good
